// SPDX-License-Identifier: Apache-2.0

package figure

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

// Cells are those of all rows, in words.
func Cells(rows []Row) [][]string {
	var out [][]string
	for _, r := range rows {
		out = append(out, r.Cells())
	}
	return out
}

// Print writes a table for people, after an empty line.
func Print(w io.Writer, heads []string, lines [][]string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t)
	for _, cells := range append([][]string{heads}, lines...) {
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	t.Flush()
}

// Markdown is a table for a document.
func Markdown(heads []string, lines [][]string) string {
	var b strings.Builder
	line := func(cells []string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	line(heads)
	b.WriteString(strings.Repeat("|---", len(heads)) + "|\n")
	for _, cells := range lines {
		line(cells)
	}
	return b.String()
}

// Between puts figures between the two lines of a document that are there for them.
func Between(text, begin, end, figures string) (string, error) {
	before, rest, found := strings.Cut(text, begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		return "", errors.New("it has no lines for figures")
	}
	return before + begin + figures + end + after, nil
}

// Rewrite puts figures between the two lines of the document in a file.
func Rewrite(path, begin, end, figures string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the document: %w", err)
	}
	changed, err := Between(string(text), begin, end, figures)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := os.WriteFile(path, []byte(changed), 0o644); err != nil {
		return fmt.Errorf("write the document: %w", err)
	}
	return nil
}

// ReadJSON reads a report.
func ReadJSON[Report any](path string) (*Report, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the report: %w", err)
	}
	var r Report
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("read report %s: %w", path, err)
	}
	return &r, nil
}

// WriteJSON writes a report, and the folder it is in.
func WriteJSON(path string, report any) error {
	b, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
