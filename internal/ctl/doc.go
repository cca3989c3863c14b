// SPDX-License-Identifier: Apache-2.0

// Package ctl is the command line tool aetherctl: what people ask a node.
//
// Answers go to standard output and nothing else does: notes, warnings and errors
// go to standard error. An error says what could not be done and which command to
// try next. Exit codes: 0 with an answer, 2 when the question or the manifests
// are at fault, 1 for everything else (no agent, no sandbox).
//
// Text is for people and may change; -o json and -o yaml print the wire types of
// package api and of package sandbox as they are. Colours appear on a terminal
// only, and not when NO_COLOR is set.
//
// ctl decides nothing: offline it asks package plan with the objects of package
// manifest, online it asks the agent. It must not link Envoy's API or gRPC.
package ctl
