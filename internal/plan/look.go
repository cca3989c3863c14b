// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"time"
)

// Sight is what a look at an address in the range that the index does not know
// came to. An index follows its source and is never ahead of it, so that it does
// not know an address is a suspicion, not a finding.
type Sight string

// The sights. The set is closed.
const (
	// NotLooked: the address is yet to be looked at.
	NotLooked Sight = ""
	// Absent: nobody had the address when it was looked at.
	Absent Sight = "absent"
	// OfService: a Service had it when it was looked at. The index is behind.
	OfService Sight = "service"
	// OfOther: something that is no Service had it when it was looked at.
	OfOther Sight = "other"
	// Blind: whose it is cannot be seen now; Look.Cause says why.
	Blind Sight = "blind"
)

// Cause is why a look cannot see.
type Cause string

// The causes of blindness. The set is closed.
const (
	NoCause     Cause = ""
	Unreachable Cause = "unreachable" // the API server does not answer
	TimedOut    Cause = "timeout"     // it does not answer in time
	Forbidden   Cause = "forbidden"   // the agent may not read IPAddress objects
	NotServed   Cause = "not-served"  // the cluster has no such objects (before Kubernetes 1.33)
	Refused     Cause = "refused"     // it answers with any other error: overload, most often
	Malformed   Cause = "malformed"   // its answer cannot be read
	Stale       Cause = "stale"       // not a look's: the sources are behind, so that a finding says little
)

// Causes returns the causes that a look itself can have.
func Causes() []Cause {
	return []Cause{Unreachable, TimedOut, Forbidden, NotServed, Refused, Malformed}
}

// Look is what is known of an address from looking at it.
type Look struct {
	Sight Sight
	Cause Cause // set if and only if Sight is Blind
	// Owner is who has the address, for people: "default/web", or for what is no
	// Service its kind and name.
	Owner string
	// At is when the look was begun; of Stale since when it is so. Zero when nobody
	// has looked.
	At time.Time
}

// Suspected reports whether the answer refuses an address for no better reason
// than that the index does not know it.
func (a *Answer) Suspected() bool { return a.Class == ClassUnknown && a.Verdict == Refuse }

// AfterLook returns the answer in the light of a look at its address. Only a
// suspected one changes: unless the look found that nobody has the address, it is
// passed through. What something other than a Service has is foreign.
func (a Answer) AfterLook(l Look) Answer {
	if !a.Suspected() {
		return a
	}
	// The last step is the verdict's.
	a.Why = slices.Clone(a.Why[:max(0, len(a.Why)-1)])
	verdict := "mode enforce: passed through, for it is not certain that nobody has it"
	if l.Sight == Absent {
		verdict = "mode enforce: refused as " + string(NoService)
	} else {
		a.Verdict, a.Reason = Passthrough, NoReason
	}
	if l.Sight == OfOther {
		a.Class = ClassForeign
		verdict = "passed through: others balance it"
	}
	a.Why = append(a.Why, "looked: "+l.String(), verdict)
	return a
}

// String says what the look came to, for people.
func (l Look) String() string {
	at := ""
	if !l.At.IsZero() {
		at = " at " + l.At.UTC().Format(time.RFC3339)
	}
	switch l.Sight {
	case Absent:
		return "absent" + at
	case OfService:
		return "Service " + l.Owner + " has it" + at + ", but the watch has not told of it yet"
	case OfOther:
		return l.Owner + " has it" + at + ", which is no Service"
	case Blind:
		return "nobody can see whose it is (" + string(l.Cause) + ")" + at
	default:
		return "not yet"
	}
}
