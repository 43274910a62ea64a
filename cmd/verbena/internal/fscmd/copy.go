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

	"github.com/verbena-data/verbena/cmd/verbena/internal/bytesize"
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
	var cmd *cobra.Command
	cmd = &cobra.Command{
		Use:   "put LOCAL... [PATH]",
		Short: "Store local files and trees, or standard input (-)",
		Example: `  verbena fs put access.log /logs/
  tar c src | verbena fs put - /backup/src.tar
  verbena fs put ./src /backup/`,
		Args:    atLeast(1),
		Aliases: []string{"copyFromLocal"},
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			if p.replication < 1 && cmd.Flags().Changed("replication") {
				return usage{fmt.Errorf("--replication %d: want 1 or more", p.replication)}
			}
			return p.all(ctx, s, args, func(string) error { return nil })
		}),
	}
	p.flags(cmd)
	p.threads.flags(cmd)
	flags := cmd.Flags()
	flags.BoolP("recursive", "r", true, "which is so anyway")
	_ = flags.MarkHidden("recursive") // it is there
	flags.IntVar(&p.replication, "replication", 0, "replicas of each block (default: the cluster's)")
	flags.Var(&p.blockSize, "block-size", "of a block, such as 64M (default: the cluster's)")
	return cmd
}

// put is how files are stored.
type put struct {
	force, preserve, lazy, direct bool
	replication                   int
	blockSize                     bytesize.Size
	threads                       threads
}

func (p *put) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVarP(&p.force, "force", "f", false, "replace files that are there")
	flags.BoolVarP(&p.preserve, "preserve", "p", false, "keep times, owner, group and mode")
	flags.BoolVarP(&p.lazy, "lazy", "l", false, "one replica, to be stored later where DataNodes have memory for that")
	flags.BoolVarP(&p.direct, "direct", "d", false, "write where the file belongs, not under a name of its own first")
}

// all stores what is local of the arguments under the last one, or in the home if there is
// one alone, and then calls done for each of which all is stored.
func (p *put) all(ctx context.Context, s *session, args []string, done func(local string) error) error {
	if len(args) == 1 {
		args = append(args[:1:1], ".")
	}
	sources, target, err := s.destination(ctx, args)
	if err != nil {
		return err
	}
	ctx = p.threads.begin(ctx, s)
	return p.threads.each(ctx, sources, func(name string) error {
		base := name
		if name != "-" {
			abs, err := filepath.Abs(name) // as . and .. have names, too
			if err != nil {
				return err
			}
			base = filepath.Base(abs)
		}
		to := target(base)
		if name == "-" && to != target("") {
			return errors.New("standard input has no name: give the path of a file, not of a directory")
		}
		if err := p.source(ctx, s, name, to); err != nil || name == "-" {
			return err
		}
		return done(name)
	})
}

func (p *put) source(ctx context.Context, s *session, local, target string) error {
	if local == "-" {
		return p.stream(ctx, s, s.in, "standard input", -1, 0, target)
	}
	info, err := os.Stat(local)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return p.threads.copy(ctx, func() error { return p.file(ctx, s, local, target) })
	}
	tree := localTree{put: p, s: s}
	tree.store(ctx, local, target, []fs.FileInfo{info})
	p.threads.fail(context.Cause(ctx))
	return p.threads.finish(tree.later)
}

// localTree is a local directory that is stored with all that is in it. Links are followed, as
// Hadoop follows them.
type localTree struct {
	*put
	s     *session
	later afterwards
}

// store stores a directory, which is the last of above, in target. The others are those that
// it lies in. What can't be stored is told. The end of ctx ends it, too.
func (t *localTree) store(ctx context.Context, local, target string, above []fs.FileInfo) {
	if err := t.make(ctx, target, above[len(above)-1]); err != nil {
		t.threads.fail(err)
		return
	}
	entries, err := os.ReadDir(local)
	t.threads.fail(err)
	for _, entry := range entries {
		if ctx.Err() != nil {
			return
		}
		name, to := filepath.Join(local, entry.Name()), join(target, entry.Name())
		info, err := os.Stat(name)
		switch {
		case err != nil: // a link to what is not there, say
			t.threads.fail(err)
		case info.Mode().IsRegular():
			t.threads.fail(t.threads.copy(ctx, func() error { return t.file(ctx, t.s, name, to) }))
		case !info.IsDir():
			t.threads.fail(fmt.Errorf("`%s': Is neither a file nor a directory", name))
		case slices.ContainsFunc(above, func(dir fs.FileInfo) bool { return os.SameFile(dir, info) }):
			t.threads.fail(fmt.Errorf("`%s': Is a link to a directory that it lies in", name))
		default:
			t.store(ctx, name, to, append(above, info))
		}
	}
}

// make makes a directory for what is in a local one. One that is there keeps its mode.
func (t *localTree) make(ctx context.Context, target string, info fs.FileInfo) error {
	there, err := t.s.isDir(ctx, target)
	if err != nil {
		return err
	}
	if !there {
		mode := info.Mode().Perm()
		if err := t.s.makeDir(ctx, target, fillable(mode)); err != nil {
			return err
		}
		if mode != fillable(mode) {
			t.later = append(t.later, func() error { return t.s.client.Chmod(ctx, target, mode) })
		}
	}
	if t.preserve {
		t.later = append(t.later, func() error { return t.s.preserveLocal(ctx, target, info) })
	}
	return nil
}

// makeDir makes a directory for what is to be copied into it. It may be there.
func (s *session) makeDir(ctx context.Context, name string, mode os.FileMode) error {
	err := s.client.MkdirAll(ctx, name, mode)
	if errors.Is(err, fs.ErrExist) {
		return isNo(s.verb, name, syscall.ENOTDIR)
	}
	return err
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
	mode := info.Mode().Perm()
	if mode == 0 { // which would be taken for none
		mode = 0o400
	}
	err = p.stream(ctx, s, f, filepath.Base(local), info.Size(), mode, target)
	if err == nil && mode != info.Mode().Perm() {
		err = s.client.Chmod(ctx, target, 0)
	}
	if err != nil || !p.preserve {
		return err
	}
	return s.preserveLocal(ctx, target, info)
}

// stream writes under a name of its own and renames at the end, so that nobody
// sees half a file and a failed put leaves the old one; unless it is to be direct.
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
	partial := target
	if !p.direct {
		partial = fmt.Sprintf("%s.%s._COPYING_", target, rand.Text()[:8])
	}
	o := hdfs.CreateOptions{Mode: mode, Replication: p.replication, BlockSize: int64(p.blockSize), NoParents: true, Replace: p.direct && p.force}
	if p.lazy {
		o.LazyPersist, o.Replication = true, 1
	}
	w, err := s.client.Create(ctx, partial, o)
	if errors.Is(err, fs.ErrNotExist) {
		return isNo(s.verb, target, fs.ErrNotExist) // what it is to lie in
	}
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ignoreMissing(s.client.Remove(context.WithoutCancel(ctx), partial)))
		}
	}()
	var bar io.WriteCloser = nopCloser{io.Discard}
	if p.threads.alone() {
		bar = s.progress(name, length)
	}
	if _, err = w.ReadFrom(io.TeeReader(from, bar)); err == nil {
		err = w.Close()
	} else {
		w.Abort()
	}
	bar.Close()
	if err != nil {
		return fmt.Errorf("storing %s: %w", target, err)
	}
	if p.direct {
		return nil
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
		Use:     "get PATH... [LOCAL]",
		Short:   "Fetch files and trees to local files, or files to standard output (-)",
		Aliases: []string{"copyToLocal"},
		Args:    atLeast(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			s.unverified = g.unverified
			if len(args) == 1 {
				args = append(args[:1:1], ".")
			}
			var failed failures
			sources := s.expand(ctx, args[:len(args)-1], false, &failed)
			failed.add(s, g.all(ctx, s, sources, args[len(args)-1]))
			return failed.err()
		}),
	}
	flags := cmd.Flags()
	flags.BoolVarP(&g.force, "force", "f", false, "replace files that are there")
	flags.BoolVarP(&g.preserve, "preserve", "p", false, "keep times, owner, group and mode")
	flags.BoolVar(&g.sums, "crc", false, "store checksums beside each file, too, as Hadoop's local file system has them")
	flags.BoolP("recursive", "r", true, "which is so anyway")
	_ = flags.MarkHidden("recursive") // it is there
	unverifiedFlag(cmd, &g.unverified)
	g.threads.flags(cmd)
	return cmd
}

// get is how files are fetched.
type get struct {
	force, preserve, sums, unverified bool
	threads                           threads
}

// all fetches the sources to a local path, or into it if it is a directory.
func (g *get) all(ctx context.Context, s *session, sources []string, to string) error {
	if to == "-" {
		return s.eachFile(ctx, sources, func(f *hdfs.FileReader) error { return copyFile(s.out, f) })
	}
	info, err := os.Stat(to)
	into := err == nil && info.IsDir()
	if len(sources) > 1 && !into {
		return isNo(s.verb, to, syscall.ENOTDIR)
	}
	ctx = g.threads.begin(ctx, s)
	return g.threads.each(ctx, sources, func(name string) error {
		name, local := s.path(name), to
		if into {
			local = filepath.Join(to, path.Base(name))
		}
		return g.source(ctx, s, name, local)
	})
}

func (g *get) source(ctx context.Context, s *session, name, local string) error {
	info, err := s.client.Stat(ctx, name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return g.threads.copy(ctx, func() error { return g.file(ctx, s, name, local, info) })
	}
	var later afterwards
	g.threads.fail(s.client.Walk(ctx, name, func(at string, info *hdfs.FileInfo, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			g.threads.fail(err)
			return nil
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
			g.threads.fail(g.threads.copy(ctx, func() error { return g.file(ctx, s, at, to, info) }))
			return nil
		}
		if there, err := os.Stat(to); err != nil || !there.IsDir() { // else it keeps its mode
			mode := os.FileMode(octal(info.Mode())) & 0o777
			if err := os.MkdirAll(to, fillable(mode)); err != nil {
				g.threads.fail(err)
				return fs.SkipDir
			}
			if mode != fillable(mode) {
				later = append(later, func() error { return os.Chmod(to, mode) })
			}
		}
		if g.preserve {
			later = append(later, func() error { return preserveHere(to, info) })
		}
		return nil
	}))
	return g.threads.finish(later)
}

// file fetches into a temporary file beside the target and renames it, for the
// same reasons as put does.
func (g *get) file(ctx context.Context, s *session, name, local string, info *hdfs.FileInfo) error {
	if _, err := os.Lstat(local); err == nil && !g.force {
		return isNo("get", local, fs.ErrExist) // which -f replaces
	}
	f, err := s.openFile(ctx, name)
	if err != nil {
		return err
	}
	defer f.Close()
	beside := []io.Writer{}
	if g.threads.alone() {
		bar := s.progress(path.Base(name), info.Size())
		defer bar.Close()
		beside = append(beside, bar)
	}
	var sums *sums
	if g.sums {
		sums = newSums()
		beside = append(beside, sums)
	}
	err = fillLocal(local, os.FileMode(octal(info.Mode()))&0o777, func(to io.Writer) error { return copyFile(io.MultiWriter(append([]io.Writer{to}, beside...)...), f) })
	if err == nil && sums != nil {
		err = sums.store(local)
	}
	if err != nil || !g.preserve {
		return err
	}
	return preserveHere(local, info)
}

// fillLocal has fill write a temporary file beside local, which takes its place if all goes
// well.
func fillLocal(local string, mode os.FileMode, fill func(io.Writer) error) error {
	tmp, err := os.CreateTemp(filepath.Dir(local), "."+filepath.Base(local)+".*")
	var at *fs.PathError
	if errors.As(err, &at) {
		at.Path = local // nobody has asked for the other name
	}
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
