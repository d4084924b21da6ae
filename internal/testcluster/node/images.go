// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/inferencecache/inference-cache/internal/imagetar"
)

// ToolImage is the image of the command in package tool: what tests run in
// pods.
const ToolImage = "ic.test/tool:dev"

const toolPackage = "github.com/inferencecache/inference-cache/internal/testcluster/tool"

// toolPath is where images hold the tool.
const toolPath = "/app"

// Import brings the images of an archive to the node, as
// "ctr images import" does. Pods that run keep what they have.
func (n *Node) Import(ctx context.Context, archive string) error {
	_, err := n.ctr(ctx, "images", "import", archive)
	return err
}

// Pin gives an imported image the name that it has by its digest, and returns
// that.
func (n *Node) Pin(ctx context.Context, image string) (string, error) {
	listing, err := n.ctr(ctx, "images", "list", "name=="+image)
	if err != nil {
		return "", err
	}
	digest := imageDigest.FindString(listing)
	repository, _, tagged := strings.Cut(image, ":")
	if digest == "" || !tagged {
		return "", fmt.Errorf("image %s is not on the node", image)
	}
	pinned := repository + "@" + digest
	_, err = n.ctr(ctx, "images", "tag", "--force", image, pinned)
	return pinned, err
}

var imageDigest = regexp.MustCompile(`\bsha256:[0-9a-f]{64}\b`)

// ctr runs containerd's client.
func (n *Node) ctr(ctx context.Context, args ...string) (string, error) {
	command := exec.CommandContext(ctx, n.host.programs["ctr"], append([]string{"-a", n.folder().path("containerd.sock"), "-n", "k8s.io"}, args...)...)
	output, err := command.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, output)
	}
	return string(output), nil
}

// importOwn imports the images that the cluster itself runs, and the tool's.
func (n *Node) importOwn(ctx context.Context, tool []byte) error {
	dns, err := os.ReadFile(n.Programs.CoreDNS)
	if err != nil {
		return err
	}
	for _, image := range []imagetar.Image{
		{Name: pauseImage, Entrypoint: []string{toolPath, "pause"}, Files: program(tool)},
		{Name: ToolImage, Entrypoint: []string{toolPath}, Files: program(tool)},
		{Name: dnsImage, Entrypoint: []string{toolPath}, Files: program(dns)},
	} {
		if err := n.importImage(ctx, image); err != nil {
			return err
		}
	}
	return nil
}

func program(data []byte) []imagetar.File {
	return []imagetar.File{{Path: toolPath, Executable: true, Data: data}}
}

func (n *Node) importImage(ctx context.Context, image imagetar.Image) error {
	file, err := os.CreateTemp(n.folder().path("images"), "*.tar")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	image.Architecture = runtime.GOARCH
	if _, err := image.Write(file); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	return n.Import(ctx, file.Name())
}

// BuildTool builds the tool from this module, in whose tree this process runs.
func BuildTool(ctx context.Context) ([]byte, error) {
	folder, err := os.MkdirTemp("", "tool-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	out := filepath.Join(folder, "tool")
	command := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, toolPackage)
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := command.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the test tool: %w: %s", err, output)
	}
	return os.ReadFile(out)
}
