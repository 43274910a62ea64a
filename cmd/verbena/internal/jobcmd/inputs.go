package jobcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/verbena-data/verbena/internal/unnamed"
	"github.com/verbena-data/verbena/shuffle/dataset"
)

// spooledVariable tells the processes of a job, which this command starts, where the inputs are that only the command can read.
const spooledVariable = "VERBENA_JOB_SPOOLED"

// StandardInput is how an input is named that is none of the file system.
const StandardInput = "-"

// once tells whether an input can be read but once, or by this process alone: by others of the job it is another one, or none.
func once(name string) bool {
	if name == StandardInput {
		return true
	}
	if dataset.Remote(name) {
		return false
	}
	if _, ok := dataset.Descriptor(name); ok {
		return true
	}
	info, err := os.Stat(name)
	return err == nil && !info.Mode().IsRegular() && !info.IsDir()
}

// spooled are the inputs of a job that the command has read for its processes.
type spooled struct {
	// paths are those by which the processes open them, by the names of the inputs.
	paths map[string]string
	files []*os.File
}

// Close removes the copies.
func (s *spooled) Close() error {
	errs := []error{os.Unsetenv(spooledVariable)}
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// spool copies those of the inputs that can be read but once to files in a directory, which have no names there. A file that is the
// standard input from its beginning on needs no copy.
func spool(ctx context.Context, inputs []string, in io.Reader, dir string) (_ *spooled, err error) {
	s := &spooled{paths: map[string]string{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	for _, name := range inputs {
		switch {
		case !once(name):
			continue
		case s.paths[name] != "":
			return nil, fmt.Errorf("%s can be read but once, and is named twice", name)
		}
		from := in
		if name != StandardInput {
			f, err := openUntil(ctx, name)
			if err != nil {
				return nil, err
			}
			defer f.Close()
			from = f
		}
		if s.paths[name], err = s.add(ctx, from, dir); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return s, nil
}

// add makes a file of what a reader gives, and returns its path.
func (s *spooled) add(ctx context.Context, from io.Reader, dir string) (string, error) {
	if f, ok := from.(*os.File); ok {
		info, err := f.Stat()
		if err != nil {
			return "", err
		}
		if at, err := f.Seek(0, io.SeekCurrent); err == nil && at == 0 && info.Mode().IsRegular() {
			if same, err := os.Open(descriptorPath(f)); err == nil {
				s.files = append(s.files, same)
				return descriptorPath(same), nil
			}
		}
	}
	to, err := unnamed.File(dir, "verbena-input")
	if err != nil {
		return "", fmt.Errorf("a temporary file: %w", err)
	}
	s.files = append(s.files, to)
	path := descriptorPath(to)
	if _, err := os.Stat(path); err != nil {
		return "", errors.New("the processes of the job can't read this here: write it to a file, and name that")
	}
	return path, until(ctx, func() error {
		if _, err := io.Copy(to, from); err != nil {
			return fmt.Errorf("copying it to a temporary file: %w", err)
		}
		return nil
	})
}

// descriptorPath is the path by which other processes of the user open what this one has open. Linux has such ones.
func descriptorPath(f *os.File) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()) }

// openUntil opens a file: a named pipe when somebody writes to it.
func openUntil(ctx context.Context, name string) (*os.File, error) {
	var f *os.File
	if err := until(ctx, func() (err error) {
		f, err = os.Open(name)
		return err
	}); err != nil {
		return nil, err
	}
	return f, nil
}

// until does what may wait for somebody who writes, and returns when it is done, or ctx has ended: then the process is about to end, too.
func until(ctx context.Context, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// readSpooled is what the command has told this process, which it has started.
func readSpooled() (paths map[string]string, err error) {
	text := os.Getenv(spooledVariable)
	if text == "" {
		return nil, nil
	}
	var pairs [][2][]byte // JSON's strings are UTF-8, and names need not be
	if err := json.Unmarshal([]byte(text), &pairs); err != nil {
		return nil, fmt.Errorf("%s: %w", spooledVariable, err)
	}
	paths = map[string]string{}
	for _, pair := range pairs {
		paths[string(pair[0])] = string(pair[1])
	}
	return paths, os.Unsetenv(spooledVariable)
}

// tell has the processes that this one starts know where the inputs are.
func (s *spooled) tell() error {
	if len(s.paths) == 0 {
		return nil
	}
	var pairs [][2][]byte
	for name, path := range s.paths {
		pairs = append(pairs, [2][]byte{[]byte(name), []byte(path)})
	}
	text, err := json.Marshal(pairs)
	if err != nil {
		return err
	}
	return os.Setenv(spooledVariable, string(text))
}

// refuseOnce fails if there are inputs that can be read but once. Under a launcher no process has read them for all.
func (j *Job) refuseOnce() error {
	for _, name := range j.Inputs {
		if once(name) {
			return fmt.Errorf("%s: that can't be read by all processes, since something else has started them: write it to a file that all see, and name that", name)
		}
	}
	return nil
}
