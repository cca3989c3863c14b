// SPDX-License-Identifier: Apache-2.0

package manifest

import "aether.io/aether/internal/convert"

// ConnectOnly reads directories and lists what only connects in the pods that run
// on a node, or have none.
func ConnectOnly(dirs []string, node string) ([]convert.Connecting, error) {
	r, err := Load(dirs, Options{})
	if err != nil {
		return nil, err
	}
	var out []convert.Connecting
	for _, p := range r.Objects.Pods {
		if p.Spec.NodeName == node || p.Spec.NodeName == "" {
			out = append(out, convert.Connects(p)...)
		}
	}
	return out, nil
}
