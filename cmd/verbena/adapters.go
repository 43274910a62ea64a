package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs"
)

// adapterInfo is what the host tells of an RDMA adapter, usable or not.
type adapterInfo struct {
	Name      string     `json:"name"`
	Driver    string     `json:"driver,omitempty"`
	Transport string     `json:"transport"`
	Firmware  string     `json:"firmware,omitempty"`
	Ports     []portInfo `json:"ports,omitempty"`
	Addresses []string   `json:"addresses,omitempty"`
	Unusable  string     `json:"unusable,omitempty"`
}

type portInfo struct {
	Number int    `json:"number"`
	State  string `json:"state"`
	Link   string `json:"link"`
	MTU    int    `json:"mtu"`
}

// adapters lists a provider's adapters, those that it cannot use, too. There are
// none if the provider is of another kind, or has already said why.
func adapters(ctx context.Context, p rdma.Provider) []adapterInfo {
	v, ok := p.(*ibverbs.Provider)
	if !ok {
		return nil
	}
	found, err := v.Adapters(ctx)
	if err != nil {
		return nil
	}
	var list []adapterInfo
	for _, a := range found {
		info := adapterInfo{Name: a.Name, Driver: a.Driver, Transport: a.Transport, Firmware: a.Firmware, Addresses: a.Addresses}
		for _, port := range a.Ports {
			info.Ports = append(info.Ports, portInfo{port.Number, port.State, port.Link, port.MTU})
		}
		if a.Unusable != nil {
			info.Unusable = a.Unusable.Error()
		}
		list = append(list, info)
	}
	return list
}

func showAdapters(out io.Writer, list []adapterInfo) error {
	if len(list) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ADAPTER\tDRIVER\tTRANSPORT\tPORTS\tADDRESSES\tUSABLE")
	for _, a := range list {
		var ports []string
		for _, p := range a.Ports {
			ports = append(ports, fmt.Sprintf("%d: %s, %s, MTU %d", p.Number, p.State, p.Link, p.MTU))
		}
		usable := "yes"
		if a.Unusable != "" {
			usable = "no: " + a.Unusable
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", a.Name, a.Driver, a.Transport, strings.Join(ports, "; "), strings.Join(a.Addresses, " "), usable)
	}
	return w.Flush()
}
