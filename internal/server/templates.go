// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/internal/template"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// Reason codes of RenderTemplate.
const (
	renderOK         = "OK"
	templateNotFound = "TEMPLATE_NOT_FOUND"
	renderError      = "RENDER_ERROR"
)

// templatesInterval is how often the templates' directory is looked at.
const templatesInterval = time.Second

// templates holds what may be rendered: templates of the policy extensions
// and, where those name none, of a directory.
type templates struct {
	set atomic.Pointer[template.Set]
	// dir is nil without a directory. It is used with reading held, which
	// comes before mu and which no call waits for.
	reading sync.Mutex
	dir     *template.Dir

	mu         sync.Mutex
	fromDir    []policy.Template // guarded by mu
	fromPolicy []policy.Template // guarded by mu
	revision   string            // of fromPolicy, guarded by mu
}

// openTemplates reads the directory, if there is one.
func (s *Server) openTemplates() (err error) {
	s.templates.set.Store(template.NewSet())
	if s.options.TemplatesDir == "" {
		return nil
	}
	if s.templates.dir, err = template.OpenDir(s.options.TemplatesDir); err != nil {
		return err
	}
	s.templates.fromDir = s.templates.dir.Templates()
	s.templates.set.Store(template.NewSet(s.templates.fromDir))
	return nil
}

// watchTemplates reads the directory again when it changes, until ctx ends.
func (s *Server) watchTemplates(ctx context.Context) {
	ticker := time.NewTicker(templatesInterval)
	defer ticker.Stop()
	reported := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			reported = s.reloadTemplates(reported)
		}
	}
}

// reloadTemplates returns the fault it reported; the same is reported once.
func (s *Server) reloadTemplates(reported string) string {
	t := &s.templates
	t.reading.Lock()
	defer t.reading.Unlock()
	changed, err := t.dir.Reload()
	if changed {
		t.mu.Lock()
		t.fromDir = t.dir.Templates()
		t.set.Store(template.NewSet(t.fromDir, t.fromPolicy))
		t.mu.Unlock()
		s.logger.Info("templates were read again", "templates", t.set.Load().Len())
	}
	if err == nil {
		return ""
	}
	if err.Error() != reported {
		s.logger.Warn("keeping what the templates were before", "error", err)
	}
	return err.Error()
}

// deliverTemplates takes over the templates of a policy view.
func (s *Server) deliverTemplates(view *policy.View) {
	t := &s.templates
	t.mu.Lock()
	defer t.mu.Unlock()
	before, revision := t.fromPolicy, t.revision
	t.fromPolicy, t.revision = view.Templates(), view.ExtensionsOrigin().Revision
	if len(before) == len(t.fromPolicy) && (len(before) == 0 || &before[0] == &t.fromPolicy[0]) {
		return
	}
	set := template.NewSet(t.fromDir, t.fromPolicy)
	t.set.Store(set)
	if revision == "" || revision != t.revision {
		set.EachFault(func(ref string, err error) {
			s.logger.Warn("a template cannot be used", "template", ref, "error", err)
		})
	}
}

// RenderTemplate implements pb.InferenceCacheServer.
func (c *contract) RenderTemplate(ctx context.Context, in *pb.RenderTemplateRequest) (*pb.RenderTemplateResponse, error) {
	s := c.server
	set := s.templates.set.Load()
	if set.Len() == 0 {
		return &pb.RenderTemplateResponse{ReasonCode: renderOK}, nil
	}
	namespace, _, _ := strings.Cut(in.GetTemplateRef(), "/")
	found, err := set.Find(in.GetTemplateRef())
	foreign := in.GetTenantId() != "" && in.GetTenantId() != namespace
	if errors.Is(err, template.ErrNotFound) || foreign || s.guard.visibleTenant(ctx, namespace) != namespace {
		return &pb.RenderTemplateResponse{ReasonCode: templateNotFound}, nil
	}
	response := &pb.RenderTemplateResponse{TenantNamespace: []byte(in.GetTenantId()), ReasonCode: renderError}
	if err != nil {
		return response, nil
	}
	response.TemplateRevision = found.Revision()
	text, err := found.Render(in.GetVariables())
	if err == nil {
		response.RenderedPrompt, response.ReasonCode = []byte(text), renderOK
	}
	return response, nil
}
