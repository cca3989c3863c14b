// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/google/nftables"
)

// Drift says how a network namespace differs from what Install makes of it.
type Drift struct {
	Netns string
	// Differences are sentences for people, at least one.
	Differences []string
}

func (d *Drift) Error() string {
	return fmt.Sprintf("capture in netns %s is not as it should be: %s", d.Netns, strings.Join(d.Differences, "; "))
}

// Check reads back what Install(netnsPath, c) makes and returns a *Drift when
// anything differs. Any other error means that it could not be read. It changes
// nothing.
func Check(netnsPath string, c Config) error {
	if err := c.Validate(); err != nil {
		return fmt.Errorf("check capture in netns %s: %w", netnsPath, err)
	}
	var differences []string
	err := within(netnsPath, func(k kernel) error {
		routing, err := k.checkRouting()
		if err != nil {
			return err
		}
		rules, err := checkTable(k.nft, Rules(c))
		differences = slices.Concat(routing, rules)
		return err
	})
	if err != nil {
		return fmt.Errorf("check capture in netns %s: %w", netnsPath, err)
	}
	if len(differences) > 0 {
		return &Drift{Netns: netnsPath, Differences: differences}
	}
	return nil
}

func (k kernel) checkRouting() (differences []string, err error) {
	lo, err := k.route.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("find lo: %w", err)
	}
	if lo.Attrs().Flags&net.FlagUp == 0 {
		differences = append(differences, "lo is down")
	}
	rule, err := k.hasPolicyRule()
	if err != nil {
		return nil, err
	}
	if !rule {
		differences = append(differences, fmt.Sprintf("there is no policy rule %d: from all fwmark %#x lookup %d", RulePriority, DivertMark, RouteTable))
	}
	route, err := k.hasRoute(lo)
	if err != nil {
		return nil, err
	}
	if !route {
		differences = append(differences, fmt.Sprintf("there is no route local default dev lo in table %d", RouteTable))
	}
	return differences, nil
}

func checkTable(conn *nftables.Conn, want RuleSet) (differences []string, err error) {
	exists, err := tableExists(conn)
	if err != nil {
		return nil, err
	}
	if !exists {
		return []string{"there is no nft table ip " + TableName}, nil
	}
	chains, err := readChains(conn)
	if err != nil {
		return nil, err
	}
	for _, c := range want.Chains {
		i := slices.IndexFunc(chains, func(f *nftables.Chain) bool { return f.Name == string(c.Hook) })
		if i < 0 {
			differences = append(differences, fmt.Sprintf("there is no chain %s", c.Hook))
			continue
		}
		found := chains[i]
		chains = slices.Delete(chains, i, i+1)
		if !sameBase(found, baseChain(found.Table, c)) {
			differences = append(differences, fmt.Sprintf("chain %s is not of type %s at hook %s, priority mangle", c.Hook, c.kind(), c.Hook))
		}
		if found.Policy == nil || *found.Policy != nftables.ChainPolicyAccept {
			differences = append(differences, fmt.Sprintf("the policy of chain %s is not accept", c.Hook))
		}
		rules, err := readRules(conn, found.Name)
		if err != nil {
			return nil, err
		}
		differences = append(differences, compareRules(c, rules)...)
	}
	for _, c := range chains {
		differences = append(differences, fmt.Sprintf("there is a chain %s that is not ours", c.Name))
	}
	return differences, nil
}

// compareRules says which rules are missing, too many, or in another order.
func compareRules(c Chain, found [][]instruction) (differences []string) {
	want := make([]string, len(c.Rules))
	for i, r := range c.Rules {
		want[i] = r.String()
	}
	have := make([]string, len(found))
	for i, in := range found {
		if r, ok := decode(in); ok && len(in) > 0 {
			have[i] = r.String()
		}
	}
	same := slices.Equal(want, have)
	for i, text := range want {
		if !slices.Contains(have, text) {
			differences = append(differences, fmt.Sprintf("chain %s lacks rule %d, %q", c.Hook, i+1, text))
		}
	}
	for i, text := range have {
		switch {
		case text == "":
			differences = append(differences, fmt.Sprintf("rule %d of chain %s is none that we write", i+1, c.Hook))
		case !slices.Contains(want, text):
			differences = append(differences, fmt.Sprintf("rule %d of chain %s should not be there, %q", i+1, c.Hook, text))
		}
	}
	if !same && len(differences) == 0 {
		differences = append(differences, fmt.Sprintf("the rules of chain %s are in another order or repeated", c.Hook))
	}
	return differences
}
