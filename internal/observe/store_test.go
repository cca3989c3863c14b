// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"aether.io/aether/internal/envoy"
)

func TestStoreLifeOfAConnection(t *testing.T) {
	s := NewStore(Limits{})
	now := epoch.Add(time.Minute)
	known, news, ok := s.Add(now, connection(0, open, moved(10, 0)))
	if !ok || !news || known.Duration != time.Minute {
		t.Fatalf("first heard of: %+v, news %v, %v", known, news, ok)
	}
	now = now.Add(10 * time.Second)
	if known, news, ok = s.Add(now, connection(0, open, moved(1010, 0))); !ok || news || known.Rate != 100 || known.Moved != 1000 {
		t.Fatalf("heard of again: %+v, news %v, %v", known, news, ok)
	}
	if got := s.Open(); len(got) != 1 || got[0].BytesSent != 1010 {
		t.Fatalf("open: %+v", got)
	}
	end := connection(0, moved(1015, 5), func(c *Connection) { c.Duration = 80 * time.Second })
	if known, news, ok = s.Add(now, end); !ok || !news || known.Moved != 10 {
		t.Fatalf("ended: %+v, news %v, %v", known, news, ok)
	}
	if _, _, ok = s.Add(now, connection(0, open)); ok || len(s.Open()) != 0 {
		t.Fatal("a record that came late opened it again")
	}
	d := s.Destinations()
	if len(d) != 1 || d[0].Times != 1 || d[0].ServiceAccount != "client" || d[0].Service != web {
		t.Fatalf("destinations: %+v", d)
	}
}

// TestStoreSilence: an open connection that is no longer heard of is given up.
func TestStoreSilence(t *testing.T) {
	s := NewStore(Limits{Silence: 30 * time.Second})
	s.Add(epoch, connection(0, open))
	s.Expire(epoch.Add(30 * time.Second))
	if s.OpenCount() != 1 {
		t.Error("given up too early")
	}
	s.Expire(epoch.Add(31 * time.Second))
	if s.OpenCount() != 0 || s.Losses().Silent != 1 {
		t.Errorf("%d open, losses %+v", s.OpenCount(), s.Losses())
	}
}

func TestStoreDialled(t *testing.T) {
	s := NewStore(Limits{})
	s.Add(epoch, connection(1))
	s.Add(epoch, connection(3))
	s.Add(epoch, connection(2))
	s.Add(epoch.Add(time.Hour), connection(0, open, to("10.96.0.11:80")))
	got := s.TakeDialled()
	if len(got) != 2 || !got[connection(0).Dialled].Equal(epoch.Add(3*time.Second)) {
		t.Errorf("dialled: %v", got)
	}
	for target, at := range got {
		if target != connection(0).Dialled && !at.Equal(epoch.Add(time.Hour)) {
			t.Errorf("%s is in use, last at %s", target, at)
		}
	}
	if again := s.TakeDialled(); again != nil {
		t.Errorf("taken twice: %v", again)
	}
}

// TestStoreBounds: whatever comes in, nothing grows beyond its bound, what is
// remembered is what came last, and what is not is counted.
func TestStoreBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Limits{
			Open: rapid.IntRange(1, 4).Draw(t, "open"), Ended: rapid.IntRange(1, 4).Draw(t, "ended"),
			Destinations: rapid.IntRange(1, 3).Draw(t, "destinations"), Silence: 5 * time.Second,
		}
		s := NewStore(l)
		now := epoch
		var ended []Connection
		live := map[key]bool{}
		targets := map[string]uint64{}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 2000).Draw(t, "ms")) * time.Millisecond)
			i := rapid.IntRange(0, 9).Draw(t, "connection")
			target := fmt.Sprintf("10.96.0.%d:80", i%5)
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				c := connection(i, to(target))
				s.Add(now, c)
				ended = append(ended, c)
				delete(live, c.key())
				targets[target]++
			case 1:
				c := connection(i, open, to(target))
				if _, _, ok := s.Add(now, c); ok {
					live[c.key()] = true
				}
			case 2:
				s.Expire(now)
			}
			if s.OpenCount() > l.Open || len(s.Ended()) > l.Ended || len(s.Destinations()) > l.Destinations {
				t.Fatalf("%d open, %d ended, %d destinations under %+v", s.OpenCount(), len(s.Ended()), len(s.Destinations()), l)
			}
			for _, c := range s.Open() {
				if !live[c.key()] {
					t.Fatalf("open and never opened, or ended: %+v", c)
				}
			}
		}
		got := s.Ended()
		if s.Told() != uint64(len(ended)) || s.Losses().Ended != uint64(len(ended)-len(got)) {
			t.Fatalf("%d told, %+v lost, %d remembered, %d ended", s.Told(), s.Losses(), len(got), len(ended))
		}
		for i, c := range got {
			if want := ended[len(ended)-len(got)+i]; c.key() != want.key() {
				t.Fatalf("remembered %v at %d, want %v", c.key(), i, want.key())
			}
		}
	})
}

// TestTally: whatever Envoys come and go, what ended is what each of them counted
// since it was seen first.
func TestTally(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tally Tally
		var total, active, want uint64
		before := rapid.Uint64Range(0, 5).Draw(t, "ended before")
		total = before
		for i := range rapid.IntRange(1, 20).Draw(t, "readings") {
			if i > 0 && rapid.IntRange(0, 4).Draw(t, "restart") == 0 {
				tally.None()
				total, active = 0, 0
			}
			opened := rapid.Uint64Range(0, 5).Draw(t, "opened")
			ended := rapid.Uint64Range(0, active+opened).Draw(t, "ended")
			if i == 0 {
				ended = 0
			}
			total += opened
			active += opened - ended
			want += ended
			tally.Read(total, active)
			if tally.Ended() != want || tally.Active != active {
				t.Fatalf("%d ended and %d open, want %d and %d", tally.Ended(), tally.Active, want, active)
			}
		}
	})
}

// TestTallyOfAnotherEnvoy: one that counts from zero is noticed by its count.
func TestTallyOfAnotherEnvoy(t *testing.T) {
	var tally Tally
	tally.Read(100, 10)
	tally.Read(120, 10)
	tally.Read(7, 2)
	if tally.Ended() != 25 {
		t.Errorf("%d ended, want 20 and 5", tally.Ended())
	}
}

func TestTop(t *testing.T) {
	now := epoch.Add(10 * time.Second)
	ended := []Connection{
		connection(-5, to("10.96.0.99:80")), // before the window
		connection(1), connection(2, refused),
		connection(3, func(c *Connection) { c.Outcome, c.Wait, c.Duration = envoy.ConnectFailed, -1, 30*time.Millisecond }),
		connection(4, to("10.96.0.99:80")),
	}
	for i := range ended {
		ended[i].Moved = 50
	}
	alive := []Connection{connection(0, open, func(c *Connection) { c.Rate = 1000 })}
	rows, over := Top(now, 10*time.Second, ByService, ended, alive, false)
	if over != 10*time.Second || len(rows) != 2 {
		t.Fatalf("over %s: %+v", over, rows)
	}
	r := rows[0]
	if r.Name != "shop/web:http" || r.Connections != 0.3 || r.Refused != 0.1 || r.Failed != 0.1 || r.Open != 1 || r.BytesPerSec != 1015 ||
		*r.DurationP50Ms != 10 || *r.DurationP99Ms != 30 || *r.WaitP50Ms != 1 {
		t.Errorf("%+v", r)
	}
	if rows[1].Name != "10.96.0.99:80" || rows[1].Connections != 0.1 {
		t.Errorf("%+v", rows[1])
	}
	for by, name := range map[string]string{ByPod: "shop/client-0", ByServiceAccount: "shop/client"} {
		if rows, _ := Top(now, 10*time.Second, by, ended, alive, false); len(rows) != 1 || rows[0].Name != name {
			t.Errorf("by %s: %+v", by, rows)
		}
	}
	if _, over := Top(now, time.Hour, ByPod, ended[1:], nil, true); over != now.Sub(ended[1].Ended()) {
		t.Errorf("a window longer than what is remembered is %s", over)
	}
	if rows, _ := Top(now, time.Second, ByPod, nil, alive, false); rows[0].DurationP50Ms != nil || rows[0].Connections != 0 {
		t.Errorf("nothing ended: %+v", rows[0])
	}
}
