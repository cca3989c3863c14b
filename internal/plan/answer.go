// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/netip"

	"aether.io/aether/internal/model"
)

// Mode is how far the node proxy takes over Service egress. A value that is none
// of the modes counts as ModePassthrough.
type Mode string

// The modes, in the order in which a cluster adopts them.
const (
	ModePassthrough Mode = "passthrough" // measure only: no change of path
	ModeBalance     Mode = "balance"     // serve what can be served, pass the rest through
	ModeEnforce     Mode = "enforce"     // serve or refuse by name
)

// Settings are the constants of a decision.
type Settings struct {
	Mode Mode
	Node string // this node's name; empty means no endpoint is local
	// Zone overrides the zone of the Node object when not empty.
	Zone string
}

// Class says what kind of destination an address is.
type Class string

// The destination classes, strongest first.
const (
	ClassAPIServer Class = "api-server"
	ClassExternal  Class = "external"
	ClassForeign   Class = "foreign"
	ClassService   Class = "service"
	ClassUnknown   Class = "unknown"
)

// Verdict is what a name is answered with.
type Verdict string

// The verdicts.
const (
	Balance     Verdict = "balance"
	Passthrough Verdict = "passthrough"
	Refuse      Verdict = "refuse"
)

// Reason names a refusal. The set is closed.
type Reason string

// The reasons a connection is refused for.
const (
	NoReason         Reason = ""
	NoEndpoints      Reason = "no-endpoints"
	NoLocalEndpoints Reason = "no-local-endpoints"
	PortNotDeclared  Reason = "port-not-declared"
	NoService        Reason = "no-service"
	NotProxied       Reason = "not-proxied"
)

// Topology is the hint mode that chose the endpoints (KEP-2433, KEP-3015).
type Topology string

// The topology modes.
const (
	TopologyNone Topology = "none"
	TopologyZone Topology = "zone"
	TopologyNode Topology = "node"
)

// ServiceRef names the Service port an address leads to. Port is the port's
// name, or its number when it has none or is not declared.
type ServiceRef struct {
	Service model.Name
	Port    string
}

// Policy is how the endpoints of a Service port were and will be picked.
type Policy struct {
	ClientIPAffinity bool // ring hash on the pod's address; round robin otherwise
	InternalLocal    bool
	Topology         Topology
}

// Candidate is an endpoint of a Service port with the verdict on it.
type Candidate struct {
	// Address is "ip:port" in canonical form, or as written when it is no address.
	Address     string
	AddrPort    netip.AddrPort // zero when the address is no address
	Node, Zone  string
	Ready       bool
	Serving     bool
	Terminating bool
	// Chosen is true when endpoint choice picked it; it is used if the
	// answer's verdict is Balance too.
	Chosen bool
	Why    string // one short sentence for people
}

// Answer is the decision on one dialled address.
type Answer struct {
	Target  netip.AddrPort
	Class   Class
	Verdict Verdict
	Reason  Reason // set if and only if Verdict is Refuse
	// Service is nil when the address is no Service's. Policy is nil when
	// there is no Service or it does not declare the port for TCP.
	Service *ServiceRef
	Policy  *Policy
	// Awaited is true when the endpoints of the Service are yet to be told: it has
	// a selector, and not even an empty slice of it is known.
	Awaited bool
	// Candidates are all endpoints of the Service port, chosen ones first,
	// then by address and slice name.
	Candidates []Candidate
	// Why lists the steps that led here, for people, in order.
	Why []string
}

// Early reports whether the answer refuses a Service port only because its
// endpoints are yet to be told. Service and slices come by different watches, and
// the slices are written by a controller that has to see the Service first.
func (a *Answer) Early() bool {
	return a.Awaited && a.Reason == NoEndpoints
}

// Lasting reports whether the answer belongs to a declared TCP port of a known
// Service (class service), whatever its endpoints and whatever the mode: such a
// name is remembered on disk and is outside the budget of other names.
func (a *Answer) Lasting() bool { return a.Class == ClassService && a.Policy != nil }
