// SPDX-License-Identifier: Apache-2.0

// Package agent joins the core and the shell of a node: it takes changes from
// the sources, asks from Envoy and pods from the CNI plugin, has package plan
// decide and package envoy translate, and publishes the outcome over xDS.
//
// One goroutine, the loop, owns all state: the model, the names that were asked
// for, what is published, the pods and Envoy's rejections. Everything else (the
// xDS server, HTTP handlers, the source, the statistics scraper, the file
// writer) sends it values over one channel and waits for values in return. A
// turn of the loop is: model.Apply, then demand.Step, then plan.Decide for the
// names that are affected, then envoy.Translate, then xds.Publish, then save.
//
// Invariants:
//   - Nothing is answered or refused before the sources have synced, and the xDS
//     socket does not exist before the remembered names and the listeners of the
//     recorded pods are published.
//   - What an Envoy holds when it comes back is published before the xDS server
//     looks at its request.
//   - An ask is never kept waiting for a batch of changes.
//   - Where there is a Looker, no address is refused for being unknown before it was
//     looked at; the loop never waits for a look.
//   - No failure of the disk, of Envoy or of an input file ends the agent.
//
// The agent decides nothing itself, and neither the capture rules in a pod nor
// the CNI plugin are its business.
package agent
