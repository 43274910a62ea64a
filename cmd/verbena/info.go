package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/rdma"
)

// hostInfo is what info tells, as --json shows it.
type hostInfo struct {
	OS           string             `json:"os"`
	Architecture string             `json:"architecture"`
	Processors   int                `json:"processors"`
	Providers    []providerInfo     `json:"providers"`
	Selection    *verbena.Selection `json:"selection,omitempty"`
	Legacy       string             `json:"legacy,omitempty"` // why the peer counts as one that has never heard of Verbena
}

type providerInfo struct {
	Name        string        `json:"name"`
	Unavailable string        `json:"unavailable,omitempty"`
	Devices     []deviceInfo  `json:"devices,omitempty"`
	Adapters    []adapterInfo `json:"adapters,omitempty"`
}

type deviceInfo struct {
	Name         string   `json:"name"`
	Class        string   `json:"class"`
	Capabilities []string `json:"capabilities"`
	MaxInline    int      `json:"max_inline"`
	MaxMessage   int64    `json:"max_message"`
	MaxQueue     int      `json:"max_queue_depth"`
	MaxReads     int      `json:"max_reads"`
	CrossesHosts bool     `json:"crosses_hosts"`
	KernelBypass bool     `json:"kernel_bypass"`
}

func infoCommand(o *options) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "info [HOST[:PORT]]",
		Short: "Tell what RDMA this host can do, and what would be used towards a server, and why",
		Example: `  verbena info
  verbena info 127.0.0.1:8020
  verbena info --json | jq '.providers[].devices[].capabilities'`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			info := hostInfo{OS: runtime.GOOS, Architecture: runtime.GOARCH, Processors: runtime.NumCPU()}
			for _, p := range o.providers() {
				pi := providerInfo{Name: p.Name()}
				devices, err := p.Devices(cmd.Context())
				if err != nil {
					pi.Unavailable = err.Error()
				}
				for _, d := range devices {
					pi.Devices = append(pi.Devices, newDeviceInfo(d.Attributes()))
				}
				pi.Adapters = adapters(cmd.Context(), p)
				info.Providers = append(info.Providers, pi)
			}
			if len(args) == 1 {
				rt, err := o.runtime()
				if err != nil {
					return err
				}
				defer closing(&err, rt)
				s, err := rt.Explain(cmd.Context(), withPort(args[0]))
				var legacy *verbena.LegacyPeerError
				switch {
				case errors.As(err, &legacy):
					info.Legacy = legacy.Error()
				case err != nil:
					return err
				default:
					info.Selection = &s
				}
			}
			if asJSON {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(info)
			}
			return info.show(cmd)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object")
	return cmd
}

func newDeviceInfo(a rdma.Attributes) deviceInfo {
	return deviceInfo{
		Name: a.Name, Class: a.Class.String(), Capabilities: a.Names(), MaxInline: a.MaxInline, MaxMessage: a.MaxMessage,
		MaxQueue: a.MaxQueueDepth, MaxReads: a.MaxReads, CrossesHosts: a.CrossesHosts, KernelBypass: a.KernelBypass,
	}
}

func (info *hostInfo) show(cmd *cobra.Command) error {
	out := cmd.OutOrStdout()
	fmt.Fprintf(out, "%s/%s, %d processors\n\n", info.OS, info.Architecture, info.Processors)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PROVIDER\tDEVICE\tCLASS\tREACHES\tKERNEL BYPASS\tCAPABILITIES")
	for _, p := range info.Providers {
		for _, d := range p.Devices {
			reaches, bypass := "this host", "no"
			if d.CrossesHosts {
				reaches = "any host"
			}
			if d.KernelBypass {
				bypass = "yes"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", p.Name, d.Name, d.Class, reaches, bypass, strings.Join(d.Capabilities, " "))
		}
		if p.Unavailable != "" {
			fmt.Fprintf(w, "%s\t-\t-\t-\t-\t%s\n", p.Name, p.Unavailable)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, p := range info.Providers {
		if err := showAdapters(out, p.Adapters); err != nil {
			return err
		}
	}
	switch {
	case info.Legacy != "":
		fmt.Fprintf(out, "\n%s\nIts clients use plain TCP.\n", info.Legacy)
	case info.Selection != nil:
		fmt.Fprintf(out, "\nTowards %s", info.Selection)
	}
	return nil
}
