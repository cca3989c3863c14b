// SPDX-License-Identifier: Apache-2.0

// Package api holds the wire contracts between our own processes: CNI plugin or
// sandbox → agent (pods, over cni.sock) and CLI → agent (over agent.sock), both
// JSON over HTTP on Unix sockets. It has types and their checks, no behaviour,
// and imports nothing but the standard library.
package api

// Explanation is one decision, as `aetherctl explain -o json` prints it.
type Explanation struct {
	Address   string      `json:"address"`
	Class     string      `json:"class"`  // service|mesh|api-server|foreign|unknown|external
	Answer    string      `json:"answer"` // balance|mesh|passthrough|refuse
	Reason    string      `json:"reason"` // empty unless the answer is refuse
	Service   *ServiceRef `json:"service"`
	Policy    *Policy     `json:"policy"`
	Endpoints []Endpoint  `json:"endpoints"` // never null
	// Path lists the steps of the decision, for people.
	Path []string `json:"path"`
	// Live is set by a running agent only.
	Live *Live `json:"live,omitempty"`
}

// ServiceRef names a Service port.
type ServiceRef struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Port      string `json:"port"` // the port's name, or its number when it has none
}

// Policy says how endpoints are picked.
type Policy struct {
	Affinity              string `json:"affinity"`              // None|ClientIP
	InternalTrafficPolicy string `json:"internalTrafficPolicy"` // Cluster|Local
	Topology              string `json:"topology"`              // none|zone|node
	Balancing             string `json:"balancing"`             // round-robin|ring-hash
}

// Endpoint is one endpoint of a Service port and the verdict on it.
type Endpoint struct {
	Address     string `json:"address"` // ip:port
	Node        string `json:"node"`
	Zone        string `json:"zone"`
	Ready       bool   `json:"ready"`
	Serving     bool   `json:"serving"`
	Terminating bool   `json:"terminating"`
	Used        bool   `json:"used"`
	Why         string `json:"why"`
}

// Live is what a running agent adds to a decision.
type Live struct {
	// Asked is true when Envoy has asked for the name (or it was remembered).
	Asked bool `json:"asked"`
	// LastDial is RFC 3339, empty when not known.
	LastDial string `json:"lastDial,omitempty"`
	// Connections counts connections since Envoy started; Active those open now.
	Connections uint64 `json:"connections"`
	Active      uint64 `json:"active"`
	// Looked says what a look at an address that no Service is known to have came
	// to; empty when there was none.
	Looked string `json:"looked,omitempty"`
	// Nack holds Envoy's words when it rejected the last version.
	Nack string `json:"nack,omitempty"`
}

// ServiceRow is one line of `aetherctl svc list`: a name the node was asked for.
type ServiceRow struct {
	Address   string      `json:"address"`
	Service   *ServiceRef `json:"service"`
	Class     string      `json:"class"`
	Answer    string      `json:"answer"`
	Reason    string      `json:"reason"`
	Used      int         `json:"used"`  // endpoints in use
	Ready     int         `json:"ready"` // endpoints that are ready
	Total     int         `json:"total"`
	Balancing string      `json:"balancing"`
	Policy    *Policy     `json:"policy"`
	Demand    string      `json:"demand"` // asked|remembered|over-limit
	Live      Live        `json:"live"`
}

// Pod is a pod of this node, as the CNI plugin (or the sandbox) reports it.
type Pod struct {
	Namespace      string            `json:"namespace"`
	Name           string            `json:"name"`
	UID            string            `json:"uid,omitempty"`
	ServiceAccount string            `json:"serviceAccount"`
	IP             string            `json:"ip"`
	NetNS          string            `json:"netns"` // absolute path
	Annotations    map[string]string `json:"annotations,omitempty"`
}

// Status is the agent's own state.
type Status struct {
	Node         string            `json:"node"`
	Zone         string            `json:"zone"`
	Mode         string            `json:"mode"`
	EgressSource string            `json:"egressSource"` // pod|node
	RangeKnown   bool              `json:"rangeKnown"`
	Range        []string          `json:"range"`
	Synced       bool              `json:"synced"`
	Envoy        EnvoyStatus       `json:"envoy"`
	Pods         []PodStatus       `json:"pods"`
	Names        NameCounts        `json:"names"`
	Problems     []Problem         `json:"problems"` // broken manifests, NACKs; never null
	Version      string            `json:"version"`
	Extra        map[string]string `json:"extra,omitempty"`
}

// EnvoyStatus says whether Envoy talks to the agent.
type EnvoyStatus struct {
	Connected bool   `json:"connected"`
	Version   string `json:"version,omitempty"`
}

// PodStatus is one captured pod.
type PodStatus struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	IP        string `json:"ip"`
	// Listener is ready, pending or rejected.
	Listener string `json:"listener"`
	Nack     string `json:"nack,omitempty"`
}

// NameCounts counts the names Envoy asked for, by kind of answer.
type NameCounts struct {
	Services  int    `json:"services"`
	Other     int    `json:"other"`     // within the budget of names that are no Service port
	OverLimit uint64 `json:"overLimit"` // names turned away since the agent started
	Asked     int    `json:"asked"`     // names that the youngest Envoy asked for or holds
}

// Problem is something a person should look at.
type Problem struct {
	Source string `json:"source"` // file, object and field, or resource name
	Text   string `json:"text"`
}

// Mode is the body of GET and PUT /v1/mode.
type Mode struct {
	Mode string `json:"mode"`
}

// Error is the body of every response that is not 2xx.
type Error struct {
	Error string `json:"error"`
}
