// SPDX-License-Identifier: Apache-2.0

package figure

// First compares the first connections to Services that a node was never asked for
// with later ones. Times are milliseconds from connect to the end of the first
// answer.
type First struct {
	Cold Distribution `json:"cold"`
	Warm Distribution `json:"warm"`
	// Over is what each cold connection took over the median of the warm ones of
	// the same Service.
	Over    Distribution `json:"over"`
	Samples []ColdSample `json:"samples,omitempty"`
}

// ColdSample is one Service: its first connection and the ones after it.
type ColdSample struct {
	Target string    `json:"target"`
	Cold   float64   `json:"cold"`
	Warm   []float64 `json:"warm"`
}

// Summarise makes the distributions out of the samples.
func (f *First) Summarise() {
	var cold, warm, over []float64
	for _, s := range f.Samples {
		cold = append(cold, s.Cold)
		warm = append(warm, s.Warm...)
		over = append(over, s.Cold-Median(s.Warm))
	}
	f.Cold, f.Warm, f.Over = Of(cold), Of(warm), Of(over)
}
