package main

import (
	"encoding/json"
	"os"

	"github.com/spf13/cobra"
)

// onceCommand runs one load and prints all that was measured.
func onceCommand() *cobra.Command {
	l := load{}
	var mib float64
	cmd := &cobra.Command{
		Use: "once", Short: "Run one load and print what was measured, as JSON", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l.Records = max(1, int(mib*(1<<20))/l.partitions()/l.Record)
			m, err := drive(cmd.Context(), l)
			if err != nil {
				return err
			}
			return json.NewEncoder(os.Stdout).Encode(struct {
				measurement
				PerGiB, MiBs, CallsPerMiB, StalledPercent float64 // CPU seconds for a GiB, MiB a second
			}{m, m.perGiB(), m.rate() / (1 << 20), m.callsPerMiB(), m.stalled()})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&l.System, "system", "shm", "what exchanges: shm, iwarp, tcp, A, B, grpc, ...")
	flags.IntVar(&l.Size, "processes", 8, "processes")
	flags.IntVar(&l.Threads, "threads", 4, "threads of each")
	flags.IntVar(&l.Record, "record", 100, "bytes of a record")
	flags.BoolVar(&l.Cable, "cable", false, "half of the processes in another network namespace")
	flags.BoolVar(&l.Zipf, "zipf", false, "keys by Zipf's law")
	flags.Float64Var(&mib, "mib", 1024, "MiB of records")
	return cmd
}
