package fscmd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/verbena-data/verbena/hdfs"
)

// copyFile copies a whole file.
func copyFile(to io.Writer, from *hdfs.FileReader) error {
	_, err := from.WriteTo(to)
	return err
}

// progress is a bar on a terminal, and nothing elsewhere. A length of -1 is
// not known beforehand.
func (s *session) progress(name string, length int64) io.WriteCloser {
	f, ok := s.errOut.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nopCloser{io.Discard}
	}
	return progressbar.NewOptions64(length,
		progressbar.OptionSetWriter(f),
		progressbar.OptionSetDescription(name),
		progressbar.OptionShowBytes(true),
		progressbar.OptionUseIECUnits(true),
		progressbar.OptionShowTotalBytes(true),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetWidth(30),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionOnCompletion(func() { fmt.Fprintln(f) }),
	)
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func putCommand(run runner) *cobra.Command {
	p := put{}
	cmd := &cobra.Command{
		Use:   "put LOCAL... PATH",
		Short: "Store local files, trees with -r, or standard input (-)",
		Example: `  verbena fs put access.log /logs/
  tar c src | verbena fs put - /backup/src.tar
  verbena fs put -r ./src /backup/`,
		Args:    cobra.MinimumNArgs(2),
		Aliases: []string{"copyFromLocal"},
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			return p.all(ctx, s, args, func(string) error { return nil })
		}),
	}
	flags := cmd.Flags()
	flags.BoolVarP(&p.force, "force", "f", false, "replace files that are there")
	flags.BoolVarP(&p.recursive, "recursive", "r", false, "directories with all that is in them")
	flags.IntVar(&p.replication, "replication", 0, "replicas of each block (default: the cluster's)")
	flags.Int64Var(&p.blockSize, "block-size", 0, "bytes of a block (default: the cluster's)")
	return cmd
}

type put struct {
	force, recursive bool
	replication      int
	blockSize        int64
}

// all stores what is local of the arguments under the last one, and then calls done for
// each.
func (p *put) all(ctx context.Context, s *session, args []string, done func(local string) error) error {
	sources, target, err := s.destination(ctx, args)
	if err != nil {
		return err
	}
	return s.each(sources, func(name string) error {
		to := target(filepath.Base(filepath.Clean(name)))
		if name == "-" && to != target("") {
			return errors.New("standard input has no name: give the path of a file, not of a directory")
		}
		if err := p.source(ctx, s, name, to); err != nil {
			return err
		}
		return done(name)
	})
}

func (p *put) source(ctx context.Context, s *session, local, target string) error {
	if local == "-" {
		return p.stream(ctx, s, s.in, "standard input", -1, 0o644, target)
	}
	info, err := os.Stat(local)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return p.file(ctx, s, local, target)
	}
	if !p.recursive {
		return fmt.Errorf("%s is a directory: use put -r to store it and all that is in it", local)
	}
	var later modes
	err = filepath.WalkDir(local, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(local, name)
		if err != nil {
			return err
		}
		to := join(target, filepath.ToSlash(relative))
		switch {
		case d.IsDir():
			info, err := d.Info()
			if err != nil {
				return err
			}
			if there, err := s.isDir(ctx, to); err != nil || there {
				return err // what is there keeps its mode
			}
			return s.client.MkdirAll(ctx, to, later.forNow(to, info.Mode().Perm()))
		case d.Type().IsRegular():
			return p.file(ctx, s, name, to)
		}
		fmt.Fprintf(s.errOut, "put: %s is neither a file nor a directory: left out\n", name)
		return nil
	})
	return errors.Join(err, later.set(func(name string, mode os.FileMode) error { return s.client.Chmod(ctx, name, mode) }))
}

// modes are those of directories that are to become unwritable for their owner
// once all that belongs in them is there.
type modes []struct {
	name string
	mode os.FileMode
}

// forNow is the mode to make a directory with: nobody has more rights than in
// the end, except for the owner, who fills it.
func (m *modes) forNow(name string, mode os.FileMode) os.FileMode {
	const fill = 0o700
	if mode|fill != mode {
		*m = append(*m, struct {
			name string
			mode os.FileMode
		}{name, mode})
	}
	return mode | fill
}

// set gives the directories their modes, those below first.
func (m modes) set(chmod func(string, os.FileMode) error) error {
	var errs []error
	for _, d := range slices.Backward(m) {
		errs = append(errs, chmod(d.name, d.mode))
	}
	return errors.Join(errs...)
}

func (p *put) file(ctx context.Context, s *session, local, target string) error {
	f, err := os.Open(local)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return p.stream(ctx, s, f, filepath.Base(local), info.Size(), info.Mode().Perm(), target)
}

// stream writes under a name of its own and renames at the end, so that nobody
// sees half a file and a failed put leaves the old one.
func (p *put) stream(ctx context.Context, s *session, from io.Reader, name string, length int64, mode os.FileMode, target string) (err error) {
	if info, serr := s.client.Stat(ctx, target); serr == nil {
		switch {
		case info.IsDir():
			return isNo(s.verb, target, syscall.EISDIR)
		case !p.force:
			return isNo(s.verb, target, fs.ErrExist) // which -f replaces
		}
	} else if !errors.Is(serr, fs.ErrNotExist) {
		return serr
	}
	partial := fmt.Sprintf("%s.%s._COPYING_", target, rand.Text()[:8])
	w, err := s.client.Create(ctx, partial, hdfs.CreateOptions{Mode: mode, Replication: p.replication, BlockSize: p.blockSize})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ignoreMissing(s.client.Remove(context.WithoutCancel(ctx), partial)))
		}
	}()
	bar := s.progress(name, length)
	if _, err = w.ReadFrom(io.TeeReader(from, bar)); err == nil {
		err = w.Close()
	} else {
		w.Abort()
	}
	bar.Close()
	if err != nil {
		return fmt.Errorf("storing %s: %w", target, err)
	}
	return s.client.Rename(ctx, partial, target, true)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func getCommand(run runner) *cobra.Command {
	g := get{}
	cmd := &cobra.Command{
		Use:     "get PATH... LOCAL",
		Short:   "Fetch files, trees with -r, to local files or standard output (-)",
		Aliases: []string{"copyToLocal"},
		Args:    cobra.MinimumNArgs(2),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			sources, to := args[:len(args)-1], args[len(args)-1]
			if to == "-" {
				return s.eachFile(ctx, sources, func(f *hdfs.FileReader) error { return copyFile(s.out, f) })
			}
			info, err := os.Stat(to)
			into := err == nil && info.IsDir()
			if len(sources) > 1 && !into {
				return isNo(s.verb, to, syscall.ENOTDIR)
			}
			return s.each(sources, func(name string) error {
				name, local := s.path(name), to
				if into {
					local = filepath.Join(to, path.Base(name))
				}
				return g.source(ctx, s, name, local)
			})
		}),
	}
	cmd.Flags().BoolVarP(&g.force, "force", "f", false, "replace files that are there")
	cmd.Flags().BoolVarP(&g.recursive, "recursive", "r", false, "directories with all that is in them")
	return cmd
}

type get struct{ force, recursive bool }

func (g *get) source(ctx context.Context, s *session, name, local string) error {
	info, err := s.client.Stat(ctx, name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return g.file(ctx, s, name, local, info)
	}
	if !g.recursive {
		return fmt.Errorf("%s is a directory: use get -r to fetch it and all that is in it", name)
	}
	var later modes
	err = s.client.Walk(ctx, name, func(at string, info *hdfs.FileInfo, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(name, at)
		if err != nil {
			return err
		}
		if !filepath.IsLocal(relative) {
			return fmt.Errorf("the server lists %q below %s: nothing is written outside of %s", at, name, local)
		}
		to := filepath.Join(local, relative)
		if !info.IsDir() {
			return g.file(ctx, s, at, to, info)
		}
		if there, err := os.Stat(to); err == nil && there.IsDir() {
			return nil // it keeps its mode
		}
		return os.MkdirAll(to, later.forNow(to, os.FileMode(octal(info.Mode()))&0o777))
	})
	return errors.Join(err, later.set(os.Chmod))
}

// file fetches into a temporary file beside the target and renames it, for the
// same reasons as put does.
func (g *get) file(ctx context.Context, s *session, name, local string, info os.FileInfo) error {
	if _, err := os.Lstat(local); err == nil && !g.force {
		return isNo("get", local, fs.ErrExist) // which -f replaces
	}
	f, err := s.openFile(ctx, name)
	if err != nil {
		return err
	}
	defer f.Close()
	bar := s.progress(path.Base(name), info.Size())
	defer bar.Close()
	return fillLocal(local, os.FileMode(octal(info.Mode()))&0o777, func(to io.Writer) error { return copyFile(io.MultiWriter(to, bar), f) })
}

// fillLocal has fill write a temporary file beside local, which takes its place if all goes
// well.
func fillLocal(local string, mode os.FileMode, fill func(io.Writer) error) error {
	tmp, err := os.CreateTemp(filepath.Dir(local), "."+filepath.Base(local)+".*")
	if err != nil {
		return err
	}
	if err = fill(tmp); err == nil {
		err = tmp.Chmod(mode)
	}
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), local)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(tmp.Name()))
	}
	return err
}
