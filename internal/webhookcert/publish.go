// SPDX-License-Identifier: Apache-2.0

package webhookcert

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ServiceNames are the names under which a Service is called in the cluster.
func ServiceNames(service, namespace string) []string {
	return []string{service + "." + namespace + ".svc", service + "." + namespace + ".svc.cluster.local"}
}

// IntoWebhooks makes the API server trust authorities when it calls the
// webhooks of two configurations. A configuration that is missing is an error:
// it is waited for.
func IntoWebhooks(c client.Client, mutating, validating string) Publisher {
	return func(ctx context.Context, authorities []byte) error {
		m, v := &admissionv1.MutatingWebhookConfiguration{}, &admissionv1.ValidatingWebhookConfiguration{}
		m.Name, v.Name = mutating, validating
		return errors.Join(
			repair(ctx, c, m, func() (bundles []*[]byte) {
				for i := range m.Webhooks {
					bundles = append(bundles, &m.Webhooks[i].ClientConfig.CABundle)
				}
				return bundles
			}, authorities),
			repair(ctx, c, v, func() (bundles []*[]byte) {
				for i := range v.Webhooks {
					bundles = append(bundles, &v.Webhooks[i].ClientConfig.CABundle)
				}
				return bundles
			}, authorities),
		)
	}
}

// repair writes the authorities where they differ. The write fails when
// somebody else changed the object in between.
func repair(ctx context.Context, c client.Client, object client.Object, bundles func() []*[]byte, authorities []byte) error {
	if err := c.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
		return fmt.Errorf("read %s: %w", object.GetName(), err)
	}
	before := object.DeepCopyObject().(client.Object)
	changed := false
	for _, bundle := range bundles() {
		if !bytes.Equal(*bundle, authorities) {
			*bundle, changed = authorities, true
		}
	}
	if !changed {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := c.Patch(ctx, object, patch); err != nil {
		return fmt.Errorf("write the authorities into %s: %w", object.GetName(), err)
	}
	return nil
}
