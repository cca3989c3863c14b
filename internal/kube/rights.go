// SPDX-License-Identifier: Apache-2.0

package kube

import (
	networkingv1 "k8s.io/api/networking/v1"

	"aether.io/aether/internal/convert"
)

// Right is something that the agent asks of the API server, as a rule of RBAC
// grants it.
type Right struct {
	Verbs []string
	// Group and Resource are set, or Path is.
	Group, Resource string
	Path            string // of no resource; a * at the end stands for anything
}

// Rights lists everything that this room asks of the API server, and no more.
func Rights() []Right {
	var out []Right
	for _, k := range Kinds() {
		out = append(out, k.right())
	}
	return append(out,
		Right{Verbs: []string{"get"}, Group: networkingv1.GroupName, Resource: "ipaddresses"},
		Right{Verbs: []string{"get"}, Path: "/apis/" + ServiceCIDRs.version().String()},
		Right{Verbs: []string{"get"}, Path: "/apis/" + convert.ServiceImportGroup},
		Right{Verbs: []string{"get"}, Path: "/apis/" + convert.ServiceImportGroup + "/*"},
	)
}

// right is what watching a kind takes.
func (k Kind) right() Right {
	return Right{Verbs: []string{"list", "watch"}, Group: k.group(), Resource: string(k)}
}
