// Command verbena is the one binary: a file system's servers, alone or all in
// one process, the file commands, a look at what RDMA this host can do, and a
// demonstration that measures.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"os/user"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/cmd/verbena/internal/fscmd"
	"github.com/verbena-data/verbena/cmd/verbena/internal/settings"
	"github.com/verbena-data/verbena/internal/signals"
	"github.com/verbena-data/verbena/providers"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/shuffle/launch"
)

func main() {
	// The first signal ends the command in order, a second one at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	err := execute(ctx, command(), fscmd.Arguments(os.Args[1:]))
	interrupted := signals.Of(ctx)
	stop()
	var told *fscmd.Failure
	isTold := errors.As(err, &told)
	switch {
	case interrupted != nil && (isTold || err != nil && signals.Ends(ctx, err)):
		signals.Die(interrupted)
	case errors.Is(err, launch.ErrOutputClosed):
		os.Exit(signals.BrokenPipe)
	case isTold:
		os.Exit(told.Code)
	case err != nil:
		// The runtime's errors begin with its name, which is the command's, too.
		fmt.Fprintln(os.Stderr, "verbena:", strings.TrimPrefix(err.Error(), "verbena: "))
		os.Exit(1)
	}
}

// options are what every command shares.
type options struct {
	verbose, remoteIWARP, hugePages bool

	config    string   // the file
	set, tune []string // NAME=VALUE
	rules     []string // in order
	settings  settings.Settings
}

func command() *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use:   "verbena",
		Short: "A file system for clusters that moves bytes by RDMA wherever both ends can",
		Long: `Verbena serves files to unmodified HDFS clients over TCP, and to its own dialers
over shared memory and iWARP, on one port, choosing by itself.

  verbena up        a whole file system in this terminal, in under a second
  verbena fs ls /   and its files
  verbena demo      what each transport delivers here, measured
  verbena info      what RDMA this host can do, and why not more
  verbena perf      latency, rate and bandwidth of each transport, also between hosts
  verbena tune      what sizes and times suit this machine, measured
  verbena sort      files larger than the memory, by several processes
  verbena groupby   counts and sums by a field of CSV, TSV, JSON lines, or of words
  verbena pairs     a shuffle measured as Spark's GroupByTest and sortByKey do

Providers and tuning have settings: verbena info --settings lists them, each with its
value and where that comes from. --set shm.socket-dir=/run/verbena sets one, and so does
VERBENA_SHM_SOCKET_DIR in the environment, and the line "socket-dir: /run/verbena"
under "shm:" in a file that --config or VERBENA_CONFIG names. A flag comes before the
environment, the environment before the file.`,
		Version: version(),
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return o.load()
		},
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().BoolVarP(&o.verbose, "verbose", "v", false, "log what goes on inside, too")
	root.PersistentFlags().StringVar(&o.config, "config", "", "`file` of settings, in YAML; default: what "+settings.FileVariable+" names")
	root.PersistentFlags().StringArrayVar(&o.set, "set", nil, "a provider's setting, `NAME=VALUE`; may be repeated")
	root.PersistentFlags().StringArrayVar(&o.tune, "tune", nil, "a transport's tuning, `NAME=VALUE`, such as shm.eager=32K; may be repeated")
	root.PersistentFlags().StringArrayVar(&o.rules, "rule", nil, "a `RULE` that chooses transports, such as \"bulk: size=1M.. only=tcp\"; may be repeated, the first that fits decides")
	root.PersistentFlags().BoolVar(&o.remoteIWARP, "remote-iwarp", false, "use iWARP between hosts, too; nothing authenticates the peers, so only on a trusted network (--set iwarp.remote=true)")
	root.PersistentFlags().BoolVar(&o.hugePages, "huge-pages", false, "take large memory from the huge pages that the host has reserved (vm.nr_hugepages), while there are any")
	root.AddCommand(upCommand(o), nameNodeCommand(o), dataNodeCommand(o), fsCommand(o), infoCommand(o), demoCommand(o), perfCommand(o), tuneCommand(o),
		sortCommand(o), groupbyCommand(o), gensortCommand(o), valsortCommand(o), pairsCommand(o))
	teach(root)
	return root
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return info.Main.Version + " " + s.Value
		}
	}
	return info.Main.Version
}

// logger writes what servers have to say to standard error: warnings, and all
// with -v.
func (o *options) logger() *slog.Logger {
	level := slog.LevelWarn
	if o.verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

// load reads the settings.
func (o *options) load() (err error) {
	var flags []settings.Flag
	if o.remoteIWARP {
		flags = append(flags, settings.Flag{Flag: "--remote-iwarp", Name: "iwarp.remote", Text: "true"})
	}
	if o.hugePages {
		for _, name := range settings.Names() {
			if strings.HasSuffix(name, ".huge-pages") {
				flags = append(flags, settings.Flag{Flag: "--huge-pages", Name: name, Text: "true"})
			}
		}
	}
	for _, list := range []struct {
		flag, prefix string
		values       []string
	}{{"--set", "", o.set}, {"--tune", "tuning.", o.tune}} {
		for _, each := range list.values {
			name, value, ok := strings.Cut(each, "=")
			if !ok {
				return fmt.Errorf("%s %s: want NAME=VALUE", list.flag, each)
			}
			flags = append(flags, settings.Flag{Flag: list.flag, Name: list.prefix + name, Text: value})
		}
	}
	for _, rule := range o.rules {
		flags = append(flags, settings.Flag{Flag: "--rule", Name: "rules", Text: rule})
	}
	o.settings, err = settings.Load(o.config, os.Environ(), flags)
	return err
}

func (o *options) runtime() (*verbena.Runtime, error) { return o.runtimeWith(verbena.Config{}) }

// runtimeWith is a runtime with a configuration of which the settings come before what
// cfg has.
func (o *options) runtimeWith(cfg verbena.Config) (*verbena.Runtime, error) {
	cfg.Providers = o.providers()
	if cfg.Logger == nil {
		cfg.Logger = o.logger()
	}
	o.settings.Apply(&cfg)
	return verbena.New(cfg)
}

// providers are a new set.
func (o *options) providers() []rdma.Provider {
	list, err := providers.New(providers.Config{Settings: o.settings.Providers(), Logger: o.logger()})
	if err != nil {
		panic(err) // load has checked the settings
	}
	return list
}

// forChildren are the flags that processes of this command on this host need, too.
func (o *options) forChildren() []string {
	var flags []string
	if o.hugePages {
		flags = append(flags, "--huge-pages")
	}
	if o.config != "" {
		flags = append(flags, "--config", o.config)
	}
	for _, each := range o.set {
		flags = append(flags, "--set", each)
	}
	for _, each := range o.tune {
		flags = append(flags, "--tune", each)
	}
	for _, each := range o.rules {
		flags = append(flags, "--rule", each)
	}
	return flags
}

// closing adds the error of a Close to the one that a function returns.
func closing(err *error, c interface{ Close() error }) { *err = errors.Join(*err, c.Close()) }

// userName is who files belong to: HADOOP_USER_NAME, as Hadoop's clients have
// it, or the user of this process.
func userName() (string, error) {
	if name := os.Getenv("HADOOP_USER_NAME"); name != "" {
		return name, nil
	}
	u, err := user.Current()
	if err != nil {
		return "", fmt.Errorf("who are you? %w: set HADOOP_USER_NAME or use --user", err)
	}
	return u.Username, nil
}
