// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"

	"k8s.io/klog/v2"

	"aether.io/aether/internal/agent"
	"aether.io/aether/internal/check"
	"aether.io/aether/internal/convert"
	"aether.io/aether/internal/daemon"
	"aether.io/aether/internal/kube"
	"aether.io/aether/internal/manifest"
)

// sources adds what tells the agent of Services to its dependencies: directories
// of manifests where there are any, else the Kubernetes API.
func (o *options) sources(d *agent.Deps) error {
	if len(o.manifestDirs) > 0 {
		d.Source = agent.Manifests(o.manifestDirs)
		d.ConnectOnly = connectOnly(func() ([]convert.Connecting, error) {
			return manifest.ConnectOnly(o.manifestDirs, o.config.Node) // read again, for nobody keeps the specs of pods
		})
		return nil
	}
	klog.SetSlogLogger(libraryLog(d.Log))
	client, err := kube.Connect(o.kubeconfig, daemon.Version())
	if err != nil {
		return err
	}
	source, err := kube.New(client, kube.Options{
		Node: o.config.Node, RangeGiven: len(o.config.ServiceRange) > 0, Log: d.Log, Registry: d.Registry,
	})
	if err != nil {
		return fmt.Errorf("use the Kubernetes API: %w", err)
	}
	d.Source = func(ctx context.Context, sink func(agent.Batch)) error {
		return source.Run(ctx, func(b kube.Batch) { sink(agent.Batch(b)) })
	}
	d.ConnectOnly = connectOnly(source.ConnectOnly)
	d.APIServer = func() check.APIServer { return apiServer(client.Server(), source.Freshness()) }
	if d.Looker, err = kube.NewLooker(client, source); err != nil {
		return fmt.Errorf("use the Kubernetes API: %w", err)
	}
	return nil
}

// apiServer says for a check how the watches fare.
func apiServer(address string, f kube.Freshness) check.APIServer {
	out := check.APIServer{Address: address, UnreachableSince: f.UnreachableSince}
	if f.Unreachable != nil {
		out.Err = f.Unreachable.Error()
	}
	for _, k := range f.Kinds {
		if k.Stale {
			out.Stale = append(out.Stale, string(k.Kind))
		}
	}
	return out
}

// connectOnly passes on what only connects in the pods of the node.
func connectOnly(list func() ([]convert.Connecting, error)) func(context.Context) ([]check.ConnectOnly, error) {
	return func(context.Context) ([]check.ConnectOnly, error) {
		found, err := list()
		if err != nil {
			return nil, err
		}
		out := make([]check.ConnectOnly, 0, len(found))
		for _, f := range found {
			out = append(out, check.ConnectOnly{Pod: f.Pod, Where: f.Field, What: f.What, Own: f.Own})
		}
		return out, nil
	}
}

// libraryLog takes the lines of the Kubernetes client library. What matters of
// them the agent says itself, so they are for debugging, whatever the library
// thinks of them, and their keys, which are not of our set, become one text.
func libraryLog(log *slog.Logger) *slog.Logger {
	return slog.New(libraryHandler{to: log})
}

type libraryHandler struct {
	to    *slog.Logger
	attrs []slog.Attr
}

// Enabled is slog.Handler's.
func (h libraryHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelDebug && h.to.Enabled(ctx, slog.LevelDebug) // the library has many levels below: bodies of requests, for one
}

// Handle is slog.Handler's.
func (h libraryHandler) Handle(ctx context.Context, r slog.Record) error {
	reason := ""
	add := func(a slog.Attr) bool {
		if reason != "" {
			reason += " "
		}
		reason += fmt.Sprintf("%s=%v", a.Key, a.Value)
		return true
	}
	for _, a := range h.attrs {
		add(a)
	}
	r.Attrs(add)
	h.to.LogAttrs(ctx, slog.LevelDebug, "client-go: "+r.Message, slog.String("reason", reason))
	return nil
}

// WithAttrs is slog.Handler's.
func (h libraryHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return libraryHandler{h.to, append(append([]slog.Attr{}, h.attrs...), attrs...)}
}

// WithGroup is slog.Handler's; groups mean nothing here.
func (h libraryHandler) WithGroup(string) slog.Handler { return h }
