// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"aether.io/aether/test/bench/figure"
)

// The documents of a run, in the repository.
const (
	docsText     = "docs/measurements.md"
	docsDecision = "docs/decisions/0001-endpointslice-scope.md"
	docsFigures  = "docs/measurements-cluster.json"
)

// The lines of the documents between which the figures stand.
const (
	figuresBegin = "<!-- figures of the cluster: written by `cd test/lab && go run ./measure -write-docs ../../.build/bench-cluster.json` -->\n"
	figuresEnd   = "<!-- end of figures of the cluster -->\n"
)

// writeDocs brings the documents under root along with the run in a file.
func writeDocs(root, file string) error {
	r, err := figure.ReadJSON[Report](file)
	if err != nil {
		return err
	}
	if !r.Valid {
		return fmt.Errorf("%s is of a run that was not valid: %s", file, r.Error)
	}
	if missing := r.missing(); len(missing) > 0 {
		return fmt.Errorf("%s is not of a whole run: it lacks %s", file, strings.Join(missing, ", "))
	}
	r.summarise()
	r.dropSamples()
	r.Rows = r.rows()
	for document, figures := range r.documents() {
		if err := figure.Rewrite(filepath.Join(root, document), figuresBegin, figuresEnd, figures); err != nil {
			return err
		}
	}
	return figure.WriteJSON(filepath.Join(root, docsFigures), r)
}

// missing lists what a whole run has and this one has not.
func (r *Report) missing() []string {
	var out []string
	lacks := func(there bool, what string) {
		if !there {
			out = append(out, what)
		}
	}
	var enforce, balance, quiet, loaded int
	for _, c := range r.Changes {
		if c.Mode == "enforce" && c.Leave != nil {
			enforce++
		} else {
			balance++
		}
	}
	for _, f := range r.First {
		if f.Load == nil {
			quiet++
		} else {
			loaded++
		}
	}
	lacks(enforce == 2, partSmall+" or "+partLarge)
	lacks(balance == 1, partPass)
	lacks(r.Cost != nil, partCost)
	lacks(quiet == 1, partFirst)
	lacks(loaded == 2, partLoaded)
	lacks(len(r.Scopes) == len(allScopes), partScope)
	return out
}

// summarise makes the distributions out of the samples, of a run that may be older
// than one of them.
func (r *Report) summarise() {
	for i := range r.Changes {
		r.Changes[i].Appear.summarise()
		if r.Changes[i].Leave != nil {
			r.Changes[i].Leave.summarise()
		}
	}
}

// dropSamples leaves the distributions.
func (r *Report) dropSamples() {
	for i := range r.Changes {
		r.Changes[i].Appear.Samples = nil
		if r.Changes[i].Leave != nil {
			r.Changes[i].Leave.Samples = nil
		}
	}
	for i := range r.First {
		r.First[i].Samples = nil
	}
}

// documents are the figures of each document.
func (r *Report) documents() map[string]string {
	where := fmt.Sprintf("\n%s, Linux %s, %d cores (%s), Kubernetes %s, Envoy %s. Others used %s of the machine; the load average before the run was %.1f.\n\n",
		r.Began.Format("2006-01-02"), r.Machine.Kernel, r.Machine.Cores, r.Machine.CPU, r.Kubernetes, r.Machine.Envoy, r.others(), r.Machine.LoadBefore)
	ways := "\n" + figure.Markdown(startHeads, scopeStarts(r.Scopes)) + "\n" + figure.Markdown(scopeHeads, scopeCells(r.Scopes)) + "\n"
	return map[string]string{
		docsText:     where + figure.Markdown(heads, figure.Cells(r.Rows)) + "\n",
		docsDecision: strings.TrimSuffix(where, "\n") + ways,
	}
}

// others says how busy the machine was with something else, part by part.
func (r *Report) others() string {
	var shares []float64
	for _, c := range r.Changes {
		shares = append(shares, c.Appear.Others)
		if c.Leave != nil {
			shares = append(shares, c.Leave.Others)
		}
	}
	if r.Cost != nil {
		shares = append(shares, r.Cost.Windows[0].Others, r.Cost.Windows[1].Others)
	}
	for _, f := range r.First {
		shares = append(shares, f.Others)
	}
	for _, x := range r.Scopes {
		for _, l := range x.Levels {
			shares = append(shares, l.Others)
		}
	}
	d := figure.Of(shares)
	return fmt.Sprintf("%.0f – %.0f %% (median %.0f %%)", 100*d.Min, 100*d.Max, 100*d.Median)
}
