// SPDX-License-Identifier: Apache-2.0

package kube

// spoken is what the log was told: that something fails, once, and that it does no
// more.
type spoken struct {
	s     *Source
	away  bool          // the API server does not answer
	kinds map[Kind]bool // it answers, and will not have them watched
}

func newSpoken(s *Source) *spoken { return &spoken{s: s, kinds: map[Kind]bool{}} }

// failures logs failures that begin or end.
func (l *spoken) failures() {
	f, now, log := l.s.Freshness(), l.s.o.Now(), l.s.o.Log
	switch since := f.UnreachableSince; {
	case since.IsZero() && l.away:
		l.away = false
		log.Info("the API server is reached again", "addr", l.s.client.Server())
	case !since.IsZero() && !l.away && now.Sub(since) >= grace:
		l.away = true
		log.Warn("the API server cannot be reached; what is known stays", "addr", l.s.client.Server(), "err", f.Unreachable)
	}
	for _, k := range f.Kinds {
		fails := k.Err != nil && failureOf(k.Err) != failUnreachable
		switch {
		case fails && !l.kinds[k.Kind] && now.Sub(k.FailingSince) >= grace:
			l.kinds[k.Kind] = true
			log.Warn("a kind cannot be watched; what is known of it stays", "type", string(k.Kind), "reason", string(failureOf(k.Err)), "err", cause(k.Err))
		case k.FailingSince.IsZero() && l.kinds[k.Kind]:
			delete(l.kinds, k.Kind)
			log.Info("a kind is watched again", "type", string(k.Kind))
		}
	}
}

// silent logs watches that were ended because nothing was heard of them.
func (l *spoken) silent(ks []Kind) {
	for _, k := range ks {
		l.s.o.Log.Warn("nothing was heard of a watch; it is begun anew", "type", string(k), "reason", "no event and no bookmark for "+l.s.o.StaleAfter.String())
	}
}
