package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/cmd/verbena/internal/bytesize"
	"github.com/verbena-data/verbena/cmd/verbena/internal/settings"
	"github.com/verbena-data/verbena/providers"
	"github.com/verbena-data/verbena/rdma"
)

// hostInfo is what info tells, as --json shows it.
type hostInfo struct {
	OS           string             `json:"os"`
	Architecture string             `json:"architecture"`
	Processors   int                `json:"processors"`
	Providers    []providerInfo     `json:"providers"`
	Settings     []settingInfo      `json:"settings"`
	Selection    *verbena.Selection `json:"selection,omitempty"`
	Legacy       string             `json:"legacy,omitempty"` // why the peer counts as one that has never heard of Verbena
}

type providerInfo struct {
	Name        string        `json:"name"`
	Unavailable string        `json:"unavailable,omitempty"`
	Devices     []deviceInfo  `json:"devices,omitempty"`
	Adapters    []adapterInfo `json:"adapters,omitempty"`
}

// settingInfo is a setting, its value and where that comes from.
type settingInfo struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	From  string `json:"from"`
	Usage string `json:"usage,omitempty"`
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
	var asJSON, all bool
	var intent verbena.Intent
	var size bytesize.Size
	cmd := &cobra.Command{
		Use:   "info [HOST[:PORT]]",
		Short: "Tell what RDMA this host can do, and what would be used towards a server, and why",
		Example: `  verbena info
  verbena info 127.0.0.1:8020
  verbena info 127.0.0.1:8020 --operation read --size 1M
  verbena info --settings
  verbena info --json | jq '.providers[].devices[].capabilities'`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if len(args) == 0 && (intent.Operation != "" || size != 0) {
				return errors.New("--operation and --size are of a request to a server: name it, as in verbena info HOST --size 1M")
			}
			intent.Size = int64(size)
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
			for name, why := range providers.Absent() {
				info.Providers = append(info.Providers, providerInfo{Name: name, Unavailable: why})
			}
			for _, s := range settingInfos(o.settings) {
				if all || asJSON || s.From != fromDefault {
					info.Settings = append(info.Settings, s)
				}
			}
			if len(args) == 1 {
				rt, err := o.runtime()
				if err != nil {
					return err
				}
				defer closing(&err, rt)
				s, err := rt.Explain(cmd.Context(), withPort(args[0]), verbena.DialConfig{Intent: intent})
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
	cmd.Flags().StringVar(&intent.Operation, "operation", "", "of a request to the server, as rules name it")
	cmd.Flags().Var(&size, "size", "of that request or its answer, in bytes, such as 8K or 1MiB")
	cmd.Flags().BoolVar(&all, "settings", false, "show all settings, not only those that were set")
	return cmd
}

const fromDefault = "default"

// settingInfos are all settings of providers, and the tuning: the built-in table as
// far as it is not overridden.
func settingInfos(set settings.Settings) []settingInfo {
	var infos []settingInfo
	for _, s := range slices.Concat(providers.Settings(), settings.Memory()) {
		i := settingInfo{Name: s.Name, Value: s.Default, From: fromDefault, Usage: s.Usage}
		if v, ok := set[s.Name]; ok {
			i.Value, i.From = v.Text, v.From
		}
		infos = append(infos, i)
	}
	builtIn := map[string]string{}
	source := map[string]string{}
	for _, each := range verbena.DefaultTuning() {
		row := verbena.DefaultTuningOf(each.Transport)
		for field, value := range row.Tuning.Fields() {
			builtIn["tuning."+row.Transport+"."+field] = value
			source["tuning."+row.Transport+"."+field] = row.Source
		}
	}
	for _, name := range settings.TuningNames() {
		value, ok := builtIn[name]
		i := settingInfo{Name: name, Value: value, From: fromDefault, Usage: source[name]}
		if v, set := set[name]; set {
			i.Value, i.From, i.Usage = v.Text, v.From, "built in: "+cmp.Or(value, "none") // whose source says nothing of this one
			ok = true
		}
		if ok {
			infos = append(infos, i)
		}
	}
	for _, name := range set.RuleNames() {
		infos = append(infos, settingInfo{Name: name, Value: set[name].Text, From: set[name].From, Usage: "the first rule that a request meets chooses its transports"})
	}
	return infos
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
	if len(info.Settings) > 0 {
		fmt.Fprintln(w, "\nSETTING\tVALUE\tFROM\t")
		for _, s := range info.Settings {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", s.Name, s.Value, s.From, s.Usage)
		}
		if err := w.Flush(); err != nil {
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
