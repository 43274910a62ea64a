package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/bench/internal/host"
)

func probeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "probe",
		Short: "Tell how long a cache line takes between the two processors, in ns one way",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for range 10 {
				d, err := host.Distance()
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%.1f\n", d)
			}
			return nil
		},
	}
}
