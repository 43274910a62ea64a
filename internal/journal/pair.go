package journal

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// markerName is the file that tells which of two directories is the newer one.
const markerName = "PAIR"

// marker is in each of two directories that have the same journal. Its generation
// grows with each opening, and when a directory goes out of service: the one with
// the greater generation has everything.
type marker struct {
	ID         string `json:"id"`
	Generation uint64 `json:"generation"` // 0: the directory lacks something that the other one has
}

func readMarker(fs vfs.FS, dir string) (*marker, error) {
	f, err := fs.Open(fs.PathJoin(dir, markerName))
	if oserror.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return nil, err
	}
	m := &marker{}
	if err := json.Unmarshal(data, m); err != nil {
		return &marker{}, nil // damaged: nothing is known of it
	}
	return m, nil
}

func (m marker) write(fs vfs.FS, dir string) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	name := fs.PathJoin(dir, markerName)
	if err := writeFile(fs, name+tempSuffix, data); err != nil {
		return err
	}
	if err := fs.Rename(name+tempSuffix, name); err != nil {
		return err
	}
	return syncDir(fs, dir)
}

func writeFile(fs vfs.FS, name string, data []byte) error {
	f, err := fs.Create(name, writeCategory)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

// alone notes that a journal which once had two directories changes in one.
func alone(fs vfs.FS, dir string) error {
	m, err := readMarker(fs, dir)
	if err != nil || m == nil || m.ID == "" {
		return err
	}
	if m.Generation == 0 {
		return errBehind(dir)
	}
	m.Generation++
	return m.write(fs, dir)
}

func errBehind(dir string) error {
	return fmt.Errorf("%s lacks changes that its other directory has: configure that one, too; to give up what is missing, run the offline recovery", dir)
}

// half is one of two directories before the choice.
type half struct {
	dir   string
	err   error // it can't be used
	mark  *marker
	empty bool // it has no journal
}

// behind tells that the half is known to lack something.
func (h *half) behind() bool {
	return h.err == nil && !h.empty && h.mark != nil && h.mark.ID != "" && h.mark.Generation == 0
}

// usable tells that the half has a journal.
func (h *half) usable() bool { return h.err == nil && !h.empty }

func look(fs vfs.FS, dir string) half {
	h := half{dir: dir}
	if h.err = makeDir(fs, dir); h.err != nil {
		return h
	}
	if h.mark, h.err = readMarker(fs, dir); h.err != nil {
		return h
	}
	names, err := fs.List(fs.PathJoin(dir, "log"))
	h.err = err
	if oserror.IsNotExist(err) {
		h.err = nil
	}
	h.empty = len(names) == 0
	return h
}

// order returns which of two halves to believe first, or that only one comes into
// question.
func order(halves [2]half) (candidates []int, err error) {
	a, b := halves[0], halves[1]
	switch {
	case (a.err != nil || b.err != nil) && !a.usable() && !b.usable():
		// No new journal while an old one may be where nothing can be read.
		return nil, errors.Join(a.err, b.err)
	case !a.usable() && b.behind():
		return nil, errors.Join(a.err, errBehind(b.dir))
	case !b.usable() && a.behind():
		return nil, errors.Join(b.err, errBehind(a.dir))
	case !a.usable() && !b.empty:
		return []int{1}, nil
	case !b.usable():
		return []int{0}, nil
	case a.mark == nil || b.mark == nil || a.mark.ID != b.mark.ID || a.mark.ID == "":
		return nil, fmt.Errorf("%s and %s both have a journal, and nothing says that it is the same: decide which one counts, and empty the other directory", a.dir, b.dir)
	case a.behind() && b.behind():
		return nil, errors.Join(errBehind(a.dir), errBehind(b.dir))
	case a.mark.Generation > b.mark.Generation:
		return []int{0}, nil
	case a.mark.Generation < b.mark.Generation:
		return []int{1}, nil
	}
	return []int{0, 1}, nil
}

// openPair chooses among the two directories, makes the other one equal, and
// returns the file system that keeps them so, on which the journal is at cfg.Dir.
func openPair(cfg Config) (*mirror, error) {
	fs := cfg.FS
	halves := [2]half{look(fs, cfg.Dir), look(fs, cfg.Second)}
	candidates, err := order(halves)
	if err != nil {
		return nil, err
	}
	lead := candidates[0]
	if halves[lead].err == nil && !halves[lead].empty {
		if lead, err = soundest(cfg, halves, candidates); err != nil {
			return nil, err
		}
	}
	m := &mirror{FS: fs, dirs: [2]string{cfg.Dir, cfg.Second}, logger: cfg.Logger, lead: lead}
	m.mark = marker{ID: rand.Text()}
	for _, h := range halves {
		if h.mark != nil && h.mark.ID != "" && (h.dir == m.dirs[lead] || halves[lead].empty) {
			m.mark.ID = h.mark.ID
		}
		if h.mark != nil {
			m.mark.Generation = max(m.mark.Generation, h.mark.Generation)
		}
	}
	m.mark.Generation++
	m.live[lead] = true
	other := 1 - lead
	if lead == 1 {
		cfg.Logger.Error("journal: the first directory is empty, damaged, older or not to be had; the state comes from the second one", "first", cfg.Dir, "second", cfg.Second, "err", halves[0].err)
	}
	// The lead's marker first: should the copy not end, the lead is the newer one.
	if err := m.mark.write(fs, m.dirs[lead]); err != nil {
		return nil, err
	}
	if err := halves[other].err; err == nil {
		err = m.equal(lead)
		if err == nil {
			m.live[other] = true
			return m, nil
		}
		halves[other].err = err
	}
	m.failed = halves[other].err
	cfg.Logger.Error("journal: one of the two directories can't be used until the next start; the state is kept in the other one alone", "failed", m.dirs[other], "dir", m.dirs[lead], "err", m.failed)
	return m, nil
}

// soundest returns the first candidate that is wholly good, else the first that
// opens.
func soundest(cfg Config, halves [2]half, candidates []int) (int, error) {
	opens, errs := -1, []error(nil)
	for _, i := range candidates {
		rep, err := examine(Config{Dir: halves[i].dir, FS: cfg.FS, Logger: cfg.Logger}, nil, false)
		if err == nil && rep.LogErr != nil {
			err = fmt.Errorf("the log is damaged behind entry %d: %w", rep.Good, rep.LogErr)
		}
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", halves[i].dir, err))
		case !rep.Damaged():
			return i, nil
		case opens < 0:
			opens = i
		}
	}
	if opens >= 0 {
		return opens, nil
	}
	err := errors.Join(errs...)
	if other := halves[1-candidates[0]]; len(candidates) == 1 && !other.empty && other.err == nil {
		return 0, fmt.Errorf("%w; %s is older; to give up what it lacks, run the offline recovery", err, other.dir)
	}
	return 0, fmt.Errorf("%w; to give up what is damaged, run the offline recovery", err)
}

// equal makes the other directory have the lead's files and nothing else.
func (m *mirror) equal(lead int) error {
	from, to := m.dirs[lead], m.dirs[1-lead]
	unfinished := m.mark
	unfinished.Generation = 0
	if err := unfinished.write(m.FS, to); err != nil {
		return err
	}
	for _, part := range []string{"snapshots", "log"} {
		if err := copyDir(m.FS, m.FS.PathJoin(from, part), m.FS.PathJoin(to, part), m.logger); err != nil {
			return fmt.Errorf("copy %s to %s: %w", from, to, err)
		}
	}
	return m.mark.write(m.FS, to)
}

// copyDir copies the files of a directory that the other one lacks or has
// otherwise, and removes what else is there. What is set aside as damaged stays
// where it is.
func copyDir(fs vfs.FS, from, to string, logger *slog.Logger) error {
	names, err := fs.List(from)
	if oserror.IsNotExist(err) {
		return fs.RemoveAll(to)
	}
	if err != nil {
		return err
	}
	if err := makeDir(fs, to); err != nil {
		return err
	}
	there, err := fs.List(to)
	if err != nil {
		return err
	}
	for _, name := range there {
		if !slices.Contains(names, name) && !strings.HasSuffix(name, damagedSuffix) {
			if err := fs.RemoveAll(fs.PathJoin(to, name)); err != nil {
				return err
			}
		}
	}
	for _, name := range names {
		if strings.HasSuffix(name, damagedSuffix) || name == "LOCK" {
			continue
		}
		a, b := fs.PathJoin(from, name), fs.PathJoin(to, name)
		same, err := sameFile(fs, a, b)
		if err != nil {
			return err
		}
		if same {
			continue
		}
		logger.Debug("journal: copy to the other directory", "file", b)
		if err := copyFile(fs, a, b); err != nil {
			return err
		}
	}
	return syncDir(fs, to)
}

func copyFile(fs vfs.FS, from, to string) error {
	r, err := fs.Open(from, vfs.SequentialReadsOption)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := fs.Create(to, writeCategory)
	if err != nil {
		return err
	}
	_, err = io.Copy(struct{ io.Writer }{w}, struct{ io.Reader }{r})
	return errors.Join(err, w.Sync(), w.Close())
}

// sameFile compares the bytes of two files.
func sameFile(fs vfs.FS, a, b string) (bool, error) {
	fb, err := fs.Open(b, vfs.SequentialReadsOption)
	if err != nil {
		return false, nil // copying tells what is wrong with it
	}
	defer fb.Close()
	fa, err := fs.Open(a, vfs.SequentialReadsOption)
	if err != nil {
		return false, err
	}
	defer fa.Close()
	sa, err := fa.Stat()
	if err != nil {
		return false, err
	}
	if sb, err := fb.Stat(); err != nil || sa.Size() != sb.Size() {
		return false, nil
	}
	var bufA, bufB [64 << 10]byte
	for {
		n, errA := io.ReadFull(fa, bufA[:])
		k, errB := io.ReadFull(fb, bufB[:])
		if errA != nil && errA != io.EOF && errA != io.ErrUnexpectedEOF {
			return false, errA
		}
		if n != k || !bytes.Equal(bufA[:n], bufB[:k]) || (errA == nil) != (errB == nil) {
			return false, nil
		}
		if errA != nil {
			return true, nil
		}
	}
}
