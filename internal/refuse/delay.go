// SPDX-License-Identifier: Apache-2.0

package refuse

import (
	"math"
	"time"
)

// law says how long a connection is held once its header is there: base while
// there are at most quiet refusals per second, limit from storm on, and on a
// straight line between.
type law struct {
	base, limit  time.Duration
	quiet, storm float64 // refusals per second
}

func (l law) delay(rate float64) time.Duration {
	share := (rate - l.quiet) / (l.storm - l.quiet)
	share = min(max(share, 0), 1)
	return l.base + time.Duration(share*float64(l.limit-l.base))
}

// rateWindow is the time constant of the rate: a storm is forgotten to a third
// within it.
const rateWindow = time.Second

// rate estimates events per second, recent ones weighing more. The zero value
// has seen none.
type rate struct {
	value float64
	last  time.Time
}

// add counts one event and returns the rate with it.
func (r *rate) add(now time.Time) float64 {
	r.value = r.at(now) + 1/rateWindow.Seconds()
	r.last = now
	return r.value
}

// at returns the rate without counting anything.
func (r *rate) at(now time.Time) float64 {
	if r.last.IsZero() {
		return 0
	}
	age := max(now.Sub(r.last), 0)
	return r.value * math.Exp(-age.Seconds()/rateWindow.Seconds())
}
