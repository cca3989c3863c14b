// SPDX-License-Identifier: Apache-2.0

package sandbox

// Status is what a person wants to know about a sandbox. All lists are sorted
// and never null.
type Status struct {
	Name         string `json:"name"`
	Node         string `json:"node"`
	NodeIP       string `json:"nodeIP"`
	PID          int    `json:"pid"` // of the process that holds the node
	Mode         string `json:"mode"`
	EgressSource string `json:"egressSource"`
	// Owner is the ordinary user who has the sandbox in namespaces of its own;
	// null when it is root's.
	Owner    *Owner          `json:"owner,omitempty"`
	Agent    ProcessStatus   `json:"agent"`
	Envoy    ProcessStatus   `json:"envoy"`
	Pods     []PodStatus     `json:"pods"`
	Services []ServiceStatus `json:"services"`
	// Problems are broken manifests and pods that cannot run; Notes are things
	// that were read and are not done here.
	Problems []Problem `json:"problems"`
	Notes    []string  `json:"notes"`
	Paths    Paths     `json:"paths"`
}

// ProcessStatus is the agent or Envoy.
type ProcessStatus struct {
	// State is running, starting, stopped (on purpose) or off (NoProxy).
	State    string `json:"state"`
	PID      int    `json:"pid,omitempty"`
	Restarts int    `json:"restarts"` // without being asked to
	LastExit string `json:"lastExit,omitempty"`
}

// PodStatus is one pod.
type PodStatus struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Node      string `json:"node"`
	IP        string `json:"ip"`
	// Captured is true when the pod's egress is diverted to Envoy.
	Captured bool `json:"captured"`
	Outside  bool `json:"outside"`
	// Phase is the API's: Pending, Running, Succeeded or Failed.
	Phase       string            `json:"phase"`
	Ready       bool              `json:"ready"`
	Terminating bool              `json:"terminating"`
	Containers  []ContainerStatus `json:"containers"`
	// Problem says why the pod is not running yet; empty when it is.
	Problem string `json:"problem,omitempty"`
	NetNS   string `json:"netns"`
	// Interface is the node's end of the pod's link.
	Interface string `json:"interface,omitempty"`
}

// ContainerStatus is one container.
type ContainerStatus struct {
	Name  string `json:"name"`
	Init  bool   `json:"init,omitempty"`
	State string `json:"state"` // waiting, running or terminated
	Ready bool   `json:"ready"`
	// Forced is true while a switch overrides the probe.
	Forced   bool   `json:"forced,omitempty"`
	PID      int    `json:"pid,omitempty"`
	Restarts int    `json:"restarts"`
	Reason   string `json:"reason,omitempty"` // last exit or last probe failure
	Log      string `json:"log"`
}

// ServiceStatus is one Service that has a ClusterIP.
type ServiceStatus struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	VIP       string   `json:"vip"`
	Allocated bool     `json:"allocated"` // by the sandbox, not by the manifest
	Ports     []string `json:"ports"`     // port/protocol, with the name before it when it has one
}

// Problem names what is wrong where.
type Problem struct {
	File   string `json:"file,omitempty"`
	Object string `json:"object,omitempty"`
	Field  string `json:"field,omitempty"`
	Text   string `json:"text"`
}

// Paths are the files and namespaces of a sandbox, for tests and people.
type Paths struct {
	Dir         string `json:"dir"`
	RunDir      string `json:"runDir"` // the agent's --run-dir
	AgentSocket string `json:"agentSocket"`
	AdminSocket string `json:"adminSocket"`
	Generated   string `json:"generated"`
	AccessLog   string `json:"accessLog"`
	AgentLog    string `json:"agentLog"`
	EnvoyLog    string `json:"envoyLog"`
	Bootstrap   string `json:"bootstrap"`
	NodeNetNS   string `json:"nodeNetNS"`
	OutsideNS   string `json:"outsideNetNS"`
}
