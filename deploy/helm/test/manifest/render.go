// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	chartutil "helm.sh/helm/v4/pkg/chart/common/util"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	releaseutil "helm.sh/helm/v4/pkg/release/v1/util"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Namespace is where manifests install to.
const Namespace = "inference-cache-system"

// releaseName is the name of the release that manifests show.
const releaseName = "inference-cache"

// KubeVersion is the oldest Kubernetes that manifests are for. Helm asks the
// cluster for its own.
const KubeVersion = "v1.30.0"

// Chart is a loaded Helm chart. It is safe for concurrent use.
type Chart struct{ chart *chartv2.Chart }

// Load reads the chart in a folder.
func Load(folder string) (*Chart, error) {
	loaded, err := loader.Load(folder)
	if err != nil {
		return nil, fmt.Errorf("load the chart: %w", err)
	}
	return &Chart{loaded}, nil
}

// AppVersion is the release that the chart installs by default.
func (c *Chart) AppVersion() string { return c.chart.Metadata.AppVersion }

// Render returns the text of each template by its path in the chart. The error
// is that of the values' schema or of a template. kubeVersion is that of the
// cluster; empty is KubeVersion.
func (c *Chart) Render(ctx context.Context, values, kubeVersion string) (map[string]string, error) {
	return c.RenderAs(ctx, releaseName, Namespace, values, kubeVersion)
}

// RenderAs is Render for a release of another name, in another namespace.
func (c *Chart) RenderAs(ctx context.Context, release, namespace, values, kubeVersion string) (map[string]string, error) {
	given, err := common.ReadValues([]byte(values))
	if err != nil {
		return nil, fmt.Errorf("read values: %w", err)
	}
	version, err := common.ParseKubeVersion(cmp.Or(kubeVersion, KubeVersion))
	if err != nil {
		return nil, fmt.Errorf("version of Kubernetes: %w", err)
	}
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *version
	all, err := chartutil.ToRenderValues(c.chart, given, common.ReleaseOptions{
		Name: release, Namespace: namespace, Revision: 1, IsInstall: true,
	}, capabilities)
	if err != nil {
		return nil, err
	}
	return engine.Engine{}.RenderWithContext(ctx, c.chart, all)
}

// Object is what one document of a template renders to.
type Object struct {
	*unstructured.Unstructured
	// File is the template, without folders.
	File string
}

// Key names an object: kind and name, such as Service/x.
func (o Object) Key() string { return o.GetKind() + "/" + o.GetName() }

// Objects returns what the values render to, in the order in which Helm
// installs it.
func (c *Chart) Objects(ctx context.Context, values, kubeVersion string) ([]Object, error) {
	files, err := c.Render(ctx, values, kubeVersion)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(files, func(name, _ string) bool { return !strings.HasSuffix(name, ".yaml") })
	_, documents, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	if err != nil {
		return nil, fmt.Errorf("sort what the chart renders: %w", err)
	}
	var all []Object
	for _, document := range documents {
		object := Object{&unstructured.Unstructured{}, path.Base(document.Name)}
		if err := yaml.Unmarshal([]byte(document.Content), &object.Object); err != nil {
			return nil, fmt.Errorf("%s: %w", document.Name, err)
		}
		all = append(all, object)
	}
	return all, nil
}

// Plain returns the objects of a release that Helm does not keep: without
// Helm's own labels and annotations, and with the namespace.
func (c *Chart) Plain(ctx context.Context, values string) ([]Object, error) {
	rendered, err := c.Objects(ctx, values, "")
	if err != nil {
		return nil, err
	}
	all := []Object{{namespaceObject(), "namespace.yaml"}}
	for _, object := range rendered {
		object.withoutHelm()
		all = append(all, object)
	}
	return all, nil
}

func namespaceObject() *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion("v1")
	object.SetKind("Namespace")
	object.SetName(Namespace)
	object.SetLabels(map[string]string{
		"app.kubernetes.io/name":                     "inference-cache",
		"pod-security.kubernetes.io/enforce":         "restricted",
		"pod-security.kubernetes.io/enforce-version": "latest",
	})
	return object
}

// withoutHelm removes what only means something to Helm, also from templates of
// pods.
func (o Object) withoutHelm() {
	for _, fields := range [][]string{{"metadata"}, {"spec", "template", "metadata"}} {
		for _, label := range []string{"helm.sh/chart", "app.kubernetes.io/managed-by"} {
			unstructured.RemoveNestedField(o.Object, slices.Concat(fields, []string{"labels", label})...)
		}
		annotations := slices.Concat(fields, []string{"annotations"})
		unstructured.RemoveNestedField(o.Object, slices.Concat(annotations, []string{"helm.sh/resource-policy"})...)
		if left, found, err := unstructured.NestedMap(o.Object, annotations...); found && err == nil && len(left) == 0 {
			unstructured.RemoveNestedField(o.Object, annotations...)
		}
	}
}
