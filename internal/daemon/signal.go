// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

// Signals returns a context that ends with the first SIGTERM or SIGINT, which it
// logs. A second one ends the process the way it would without this function.
// stop releases what Signals holds, and waits for its goroutine.
func Signals(parent context.Context, log *slog.Logger) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGTERM, syscall.SIGINT)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case s := <-ch:
			log.Info("stopping", "signal", s.String())
		case <-ctx.Done():
		}
		signal.Stop(ch)
		cancel()
	}()
	return ctx, func() {
		cancel()
		<-done
	}
}
