package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"
)

// hostPackages are the Debian packages that the lab needs on the host: the
// emulator, what unpacks and builds, and the programs that go into the image.
var hostPackages = []string{
	"qemu-system-x86",                                // the virtual machine
	"binutils", "gcc-12", "make", "kmod", "xz-utils", // siw.ko, module lists, the kernel's image
	"busybox-static", "dash", "iproute2", // in the image
	"rdma-core", "ibverbs-utils", "ibverbs-providers", "librdmacm1", "rdmacm-utils", "perftest",
}

// errMissing is wrapped by the error that names missing packages.
var errMissing = errors.New("packages of Debian are missing")

// installedVersions returns the version of each of hostPackages, or an error that
// wraps errMissing and says what to run.
func installedVersions(ctx context.Context) (map[string]string, error) {
	if _, err := exec.LookPath("dpkg-query"); err != nil {
		return nil, errors.New("the lab builds its image from Debian's packages, and this is no Debian: dpkg-query is not there (run it in a container of debian:12)")
	}
	cmd := exec.CommandContext(ctx, "dpkg-query", append([]string{"-W", "-f=${Package} ${db:Status-Status} ${Version}\n"}, hostPackages...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, io.Discard // unknown packages go to standard error
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			return nil, fmt.Errorf("dpkg-query: %w", err)
		}
	}
	versions := map[string]string{}
	for _, line := range strings.Split(out.String(), "\n") {
		if f := strings.Fields(line); len(f) == 3 && f[1] == "installed" {
			versions[f[0]] = f[2]
		}
	}
	var missing []string
	for _, p := range hostPackages {
		if versions[p] == "" {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		return versions, nil
	}
	sudo := "sudo "
	if os.Geteuid() == 0 {
		sudo = ""
	}
	return nil, fmt.Errorf("%w; install them:\n  %sapt-get install --no-install-recommends %s", errMissing, sudo, strings.Join(missing, " "))
}

func packagesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "packages",
		Short: "The Debian packages that the lab needs, one a line",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, p := range hostPackages {
				fmt.Fprintln(cmd.OutOrStdout(), p)
			}
			return nil
		},
	}
}
