// SPDX-License-Identifier: Apache-2.0

package webhookcert

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// watchAgain is the time between the end of a watch and the next.
const watchAgain = 5 * time.Second

// Watch tells of changes to the two webhook configurations, such as an upgrade
// that adds entries without authorities. Where it may not watch, it does
// nothing but say so.
type Watch struct {
	client               client.WithWatch
	mutating, validating string
	changed              func()
	logger               *slog.Logger
}

// NewWatch returns a watch of two configurations by their names. Changed may be
// called from several goroutines at once and must not block; a nil logger is
// silent.
func NewWatch(c client.WithWatch, mutating, validating string, changed func(), logger *slog.Logger) *Watch {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Watch{c, mutating, validating, changed, logger}
}

// NeedLeaderElection is true: only the keeper listens.
func (w *Watch) NeedLeaderElection() bool { return true }

// Start watches until ctx ends.
func (w *Watch) Start(ctx context.Context) error {
	var group sync.WaitGroup
	group.Go(func() {
		w.follow(ctx, w.mutating, func() client.ObjectList { return &admissionv1.MutatingWebhookConfigurationList{} })
	})
	group.Go(func() {
		w.follow(ctx, w.validating, func() client.ObjectList { return &admissionv1.ValidatingWebhookConfigurationList{} })
	})
	group.Wait()
	return nil
}

// follow watches one configuration. It tells of each failure once.
func (w *Watch) follow(ctx context.Context, name string, list func() client.ObjectList) {
	told := ""
	for ctx.Err() == nil {
		failure := ""
		if err := w.once(ctx, name, list()); err != nil && ctx.Err() == nil {
			if failure = err.Error(); failure != told {
				w.logger.Warn("changes are seen at the next check only", "error", err)
			}
		}
		told = failure
		timer := time.NewTimer(watchAgain)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// once watches until the API server ends it, as it does every now and then.
func (w *Watch) once(ctx context.Context, name string, list client.ObjectList) error {
	watcher, err := w.client.Watch(ctx, list, client.MatchingFields{metav1.ObjectNameField: name})
	if err != nil {
		return fmt.Errorf("watch %s: %w", name, err)
	}
	defer watcher.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, more := <-watcher.ResultChan():
			if !more {
				return nil
			}
			w.changed()
		}
	}
}
