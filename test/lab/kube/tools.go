// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package kube names the programs of the lab's cluster: this module builds them
// with the versions of everything that Kubernetes itself asks for, whatever the
// product and its tests need.
package kube

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-proxy"
	_ "k8s.io/kubernetes/cmd/kubectl"
)
