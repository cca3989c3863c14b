// SPDX-License-Identifier: Apache-2.0

package lab

// AgentKubeconfig is the kubeconfig with the agent's rights. Unlike Kubeconfig it
// leads to kube-apiserver from our node's namespace, and from there only.
func (c *Cluster) AgentKubeconfig() string { return c.paths.kubeconfig("aether-agent") }
