// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"aether.io/aether/internal/agent/api"
)

func (c *cli) svcCommand() *cobra.Command {
	return group("svc", "Services as the node sees them", c.svcListCommand())
}

func (c *cli) svcListCommand() *cobra.Command {
	var out format
	var namespace string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List what the node was asked for, and how it answers",
		Long: `List shows every address and port that a captured pod of this node has dialled and
Envoy has asked for: the answer, the endpoints (used/ready/all), the connections.
A Service that nobody dialled is not listed; explain answers for it all the same.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := c.agent(cmd.Context(), cmd.Flags().Changed("agent-socket"))
			if err != nil {
				return err
			}
			rows, err := a.services(cmd.Context())
			if err != nil {
				return err
			}
			rows = listed(rows, namespace)
			if len(rows) == 0 {
				c.note("nothing to list: a Service appears here once a captured pod has dialled it")
			}
			return c.print(out, rows, func(wide bool) string { return serviceTable(rows, wide).render("") })
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "only Services of this `namespace`")
	addOutputFlag(cmd, &out)
	return cmd
}

// listed returns the rows of the namespace ("": all) in the order of a list:
// Services by name, then what is nobody's by address. It is never nil.
func listed(rows []api.ServiceRow, namespace string) []api.ServiceRow {
	out := []api.ServiceRow{}
	for _, r := range rows {
		if namespace == "" || r.Service != nil && r.Service.Namespace == namespace {
			out = append(out, r)
		}
	}
	slices.SortStableFunc(out, func(a, b api.ServiceRow) int {
		sa, sb := a.Service, b.Service
		switch {
		case sa == nil && sb == nil:
			return cmp.Compare(a.Address, b.Address)
		case sa == nil:
			return 1
		case sb == nil:
			return -1
		}
		return cmp.Or(cmp.Compare(sa.Namespace, sb.Namespace), cmp.Compare(sa.Name, sb.Name), cmp.Compare(a.Address, b.Address))
	})
	return out
}

func serviceTable(rows []api.ServiceRow, wide bool) *table {
	t := &table{head: []string{"NAMESPACE", "SERVICE", "ADDRESS", "CLASS", "ANSWER", "ENDPOINTS", "BALANCING", "DEMAND", "CONNS", "REASON"}}
	if wide {
		t.head = append(t.head, "POLICY", "ACTIVE", "LAST DIAL", "LOOKED", "NACK")
	}
	for _, r := range rows {
		namespace, service := "-", "-"
		if r.Service != nil {
			namespace, service = r.Service.Namespace, r.Service.Name+":"+r.Service.Port
		}
		cells := []string{
			namespace, service, r.Address, r.Class, r.Answer, fmt.Sprintf("%d/%d/%d", r.Used, r.Ready, r.Total),
			orDash(r.Balancing), orDash(r.Demand), strconv.FormatUint(r.Live.Connections, 10), orDash(r.Reason),
		}
		if wide {
			policy := "-"
			if p := r.Policy; p != nil {
				policy = fmt.Sprintf("affinity=%s,internal=%s,topology=%s", p.Affinity, p.InternalTrafficPolicy, p.Topology)
			}
			cells = append(cells, policy, strconv.FormatUint(r.Live.Active, 10), orDash(r.Live.LastDial), orDash(r.Live.Looked), orDash(r.Live.Nack))
		}
		style := stylePlain
		if r.Answer == "refuse" || r.Live.Nack != "" {
			style = styleBad
		}
		t.add(style, cells...)
	}
	return t
}
