// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/internal/server"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

func (h *harness) render(in *pb.RenderTemplateRequest) *pb.RenderTemplateResponse {
	h.t.Helper()
	response, err := h.client.RenderTemplate(h.ctx(), in)
	if err != nil {
		h.t.Fatal(err)
	}
	return response
}

func TestRenderTemplate(t *testing.T) {
	h := start(t)
	h.server.SetExtensions(&policy.ExtensionSet{Templates: []policy.Template{
		{
			Namespace: "team", Name: "greeting", Body: "Hello {{who}}{{mark}}",
			Slots: []policy.Slot{{Name: "who", Type: policy.SlotStable, Required: true}, {Name: "mark", Type: policy.SlotMutable}},
		},
		{Namespace: "team", Name: "broken", Body: "{{nobody}}"},
	}})
	// SHA-256 of "Hello {{who}}{{mark}}\x00mark:Mutable:false\nwho:Stable:true\n".
	const revision = "7fd61737eee523ca"
	who := map[string]string{"who": "you"}
	for name, tc := range map[string]struct {
		request *pb.RenderTemplateRequest
		want    *pb.RenderTemplateResponse
	}{
		"rendered for its tenant": {
			&pb.RenderTemplateRequest{TemplateRef: "team/greeting", TenantId: "team", Variables: who},
			&pb.RenderTemplateResponse{
				RenderedPrompt: []byte("Hello you"), TenantNamespace: []byte("team"), ReasonCode: "OK", TemplateRevision: revision,
			},
		},
		"rendered for nobody": {
			&pb.RenderTemplateRequest{TemplateRef: "team/greeting", Variables: map[string]string{"who": "ü", "mark": "!"}},
			&pb.RenderTemplateResponse{RenderedPrompt: []byte("Hello ü!"), ReasonCode: "OK", TemplateRevision: revision},
		},
		"a required variable is missing": {
			&pb.RenderTemplateRequest{TemplateRef: "team/greeting", TenantId: "team"},
			&pb.RenderTemplateResponse{TenantNamespace: []byte("team"), ReasonCode: "RENDER_ERROR", TemplateRevision: revision},
		},
		"a variable too many": {
			&pb.RenderTemplateRequest{TemplateRef: "team/greeting", Variables: map[string]string{"who": "", "x": ""}},
			&pb.RenderTemplateResponse{ReasonCode: "RENDER_ERROR", TemplateRevision: revision},
		},
		"too long": {
			&pb.RenderTemplateRequest{TemplateRef: "team/greeting", Variables: map[string]string{"who": strings.Repeat("x", 1<<20-5)}},
			&pb.RenderTemplateResponse{ReasonCode: "RENDER_ERROR", TemplateRevision: revision},
		},
		"a template that cannot be used": {
			&pb.RenderTemplateRequest{TemplateRef: "team/broken", TenantId: "team"},
			&pb.RenderTemplateResponse{TenantNamespace: []byte("team"), ReasonCode: "RENDER_ERROR"},
		},
		"an unknown template": {
			&pb.RenderTemplateRequest{TemplateRef: "team/other", TenantId: "team"},
			&pb.RenderTemplateResponse{ReasonCode: "TEMPLATE_NOT_FOUND"},
		},
		"another tenant's template": {
			&pb.RenderTemplateRequest{TemplateRef: "team/greeting", TenantId: "other", Variables: who},
			&pb.RenderTemplateResponse{ReasonCode: "TEMPLATE_NOT_FOUND"},
		},
		"no reference": {
			&pb.RenderTemplateRequest{TenantId: "team"}, &pb.RenderTemplateResponse{ReasonCode: "TEMPLATE_NOT_FOUND"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, h.render(tc.request), protocmp.Transform()); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
	h.server.SetExtensions(new(policy.ExtensionSet))
	want := &pb.RenderTemplateResponse{ReasonCode: "OK"}
	if diff := cmp.Diff(want, h.render(&pb.RenderTemplateRequest{TemplateRef: "team/greeting"}), protocmp.Transform()); diff != "" {
		t.Errorf("after all templates went (-want +got):\n%s", diff)
	}
}

// TestTemplatesDir renders from files; templates of the policy extensions win
// over them, and files change under a running server.
func TestTemplatesDir(t *testing.T) {
	dir := t.TempDir()
	put := func(name, body string) {
		t.Helper()
		path := filepath.Join(dir, "team", name+".yaml")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(path) // so that the next file is another one
		text := "apiVersion: inferencecache.io/v1alpha1\nkind: PromptTemplate\nspec:\n  body: " + body + "\n"
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("a", "from a file")
	put("b", "from a file too")
	h := start(t, func(o *server.Options) { o.TemplatesDir = dir })
	expect := func(ref, want string) {
		t.Helper()
		got := h.render(&pb.RenderTemplateRequest{TemplateRef: ref})
		if text := got.GetReasonCode() + " " + string(got.GetRenderedPrompt()); text != want {
			t.Errorf("%s: %q, want %q", ref, text, want)
		}
	}
	expect("team/a", "OK from a file")
	h.server.SetExtensions(&policy.ExtensionSet{Templates: []policy.Template{{Namespace: "team", Name: "b", Body: "pushed"}}})
	expect("team/a", "OK from a file")
	expect("team/b", "OK pushed")
	put("a", "changed, longer")
	put("c", "new")
	h.server.ReloadTemplates()
	expect("team/a", "OK changed, longer")
	expect("team/b", "OK pushed")
	expect("team/c", "OK new")
	put("a", "'{{'")
	h.server.ReloadTemplates()
	expect("team/a", "OK changed, longer")
	h.server.SetExtensions(new(policy.ExtensionSet))
	expect("team/b", "OK from a file too")
}

func TestUnusableTemplatesDir(t *testing.T) {
	if _, err := server.New(server.Options{TemplatesDir: filepath.Join(t.TempDir(), "none")}); err == nil {
		t.Error("a server without its templates was made")
	}
}
