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
	docsText    = "docs/measurements.md"
	docsFigures = "docs/measurements.json"
)

// The lines of the document between which the figures stand.
const (
	figuresBegin = "<!-- figures: written by `go run ./test/bench -write-docs .build/bench.json` -->\n"
	figuresEnd   = "<!-- end of figures -->\n"
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
	r.dropSamples()
	r.Rows = r.rows()
	if err := figure.Rewrite(filepath.Join(root, docsText), figuresBegin, figuresEnd, r.markdown()); err != nil {
		return err
	}
	return r.write(filepath.Join(root, docsFigures))
}

// missing lists what a whole run has and this one has not.
func (r *Report) missing() []string {
	var out []string
	for row, there := range map[string]bool{
		rowFirst: len(r.First) == len(allSources), rowRolling: len(r.Rolling) == len(allSources),
		"loads": len(r.Load) == 2*len(allSources), rowScale: len(r.Scale) > 1,
		rowMemory: r.Memory != nil, rowNeighbour: r.Neighbour != nil,
	} {
		if !there {
			out = append(out, row)
		}
	}
	return out
}

// dropSamples leaves the distributions.
func (r *Report) dropSamples() {
	for i := range r.First {
		r.First[i].Samples = nil
	}
	for i := range r.Rolling {
		r.Rolling[i].Samples = nil
	}
	for i := range r.Load {
		r.Load[i].Samples = nil
	}
}

// markdown is the report as the document has it.
func (r *Report) markdown() string {
	var b strings.Builder
	m := r.Machine
	fmt.Fprintf(&b, "\n%s, Linux %s, %d cores (%s), Envoy %s, wrk %s, HAProxy %s; %d pairs. Others used %s of the machine "+
		"(median of each part); the load average before the run was %.1f.\n\n",
		r.Began.Format("2006-01-02"), m.Kernel, m.Cores, m.CPU, m.Envoy, m.Wrk, m.HAProxy, r.Settings.Pairs, r.others(), m.LoadBefore)
	b.WriteString(figure.Markdown(figure.Heads, figure.Cells(r.Rows)))
	b.WriteString("\n")
	b.WriteString(figure.Markdown(laneHeads, r.laneCells()))
	b.WriteString("\n")
	return b.String()
}

// others says how busy the machine was with something else.
func (r *Report) others() string {
	var shares []float64
	for _, f := range r.First {
		shares = append(shares, f.Others)
	}
	for _, f := range r.Rolling {
		shares = append(shares, f.Others)
	}
	for _, l := range r.Load {
		shares = append(shares, l.Others.Median)
	}
	for _, s := range r.Scale {
		shares = append(shares, s.Others)
	}
	d := figure.Of(shares)
	return fmt.Sprintf("%.0f – %.0f %%", 100*d.Min, 100*d.Max)
}
