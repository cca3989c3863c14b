// SPDX-License-Identifier: Apache-2.0

// Package dashboard holds the dashboard, the alerts and the scrape configuration
// against a node that runs: it scrapes a sandbox during traffic into Prometheus'
// own storage, and has Prometheus' own engine evaluate every query.
//
// It is a module of its own for the sake of what it links. It uses the programs
// and imports nothing of ours.
package dashboard
