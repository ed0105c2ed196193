// Package rundir keeps the folder of a training run: checkpoints that are there whole or not at all, whenever the process, the
// machine or the disk stops; a log of metrics that only grows; and a lock, so that one trainer writes into it at a time.
//
//	RUN/LOCK
//	RUN/latest              the name of the newest checkpoint
//	RUN/step_100/           a checkpoint: its files and MANIFEST.json
//	RUN/step_110.tmp-7421   one that was never finished
//	RUN/metrics.jsonl       lines of the steps that were made
//
// A checkpoint is written into a temporary directory, every file is flushed and synced, the manifest with the sizes and hashes of
// all of them comes last, and the directory is renamed. Where renaming is not atomic the manifest is what decides. A reader
// accepts a directory only if its manifest is right in every size and hash and nothing else lies there.
package rundir

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// LockedError says that another process holds the lock of a run.
type LockedError struct {
	File   string
	Holder string // its process number, "" if it is not known
}

func (e *LockedError) Error() string {
	who := "another process"
	if e.Holder != "" {
		who = "process " + e.Holder
	}
	return fmt.Sprintf("%s: %s is training in this folder", e.File, who)
}

// Run is a run's folder that this process writes into.
type Run struct {
	disk Disk
	path string
	keep int
	lock *os.File
	last string // checkpoint that was saved or resumed from last
	// aside says that Resume has put checkpoints aside.
	aside bool
}

// Options of a run.
type Options struct {
	Keep int  // checkpoints that stay, the newest ones; 0: all
	Disk Disk // nil: [OS]
}

// Create makes the folder if it is not there, locks it and removes what saves that were killed left behind. The error is a
// *[LockedError] if another process holds it.
func Create(path string, o Options) (*Run, error) {
	if o.Keep < 0 {
		panic("rundir: Keep is negative")
	}
	if o.Disk == nil {
		o.Disk = OS{}
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, err
	}
	held, err := lock(filepath.Join(path, "LOCK"))
	if err != nil {
		return nil, err
	}
	r := &Run{disk: o.Disk, path: path, keep: o.Keep, lock: held}
	if err := r.sweep(); err != nil {
		held.Close()
		return nil, err
	}
	return r, nil
}

// Path returns the folder.
func (r *Run) Path() string { return r.path }

// Close gives up the lock.
func (r *Run) Close() error { return r.lock.Close() }

// temporary matches what a save that did not end leaves: the lock says that the process that wrote it is gone. Only names that this
// package makes: thesis.tmp-2024 is somebody's.
var temporary = regexp.MustCompile(`^(step_(0|[1-9][0-9]{0,11})|final|latest)\.tmp-[0-9]+$|^\.(effective_config\.(yaml|json)|env\.json|best_metadata\.json|basis\.safetensors)\.plumbline-[0-9]+\.tmp$`)

func (r *Run) sweep() error {
	names, err := r.disk.Names(r.path)
	if err != nil {
		return err
	}
	for _, name := range names {
		if temporary.MatchString(name) {
			if err := r.disk.RemoveAll(filepath.Join(r.path, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// File is a file of a checkpoint that is to be written.
type File struct {
	Name  string
	Write func(w io.Writer) error
}

// Save writes a checkpoint: "step_100", "final". The fields of m that the files decide are filled in. On an error the
// checkpoint is not there, and the one before is still the latest; an error after the rename (the last syncs, the removal of old
// ones) is returned too, with the checkpoint in place. The name must be new.
func (r *Run) Save(name string, m Manifest, files []File) (err error) {
	if !checkpointName.MatchString(name) {
		panic("rundir: " + strconv.Quote(name) + " is no name of a checkpoint")
	}
	target := filepath.Join(r.path, name)
	tmp := fmt.Sprintf("%s.tmp-%d", target, os.Getpid())
	defer func() {
		if err != nil {
			err = fmt.Errorf("saving %s: %w", target, err)
		}
	}()
	if there, err := r.disk.Exists(target); err != nil || there {
		return errors.Join(err, fs.ErrExist)
	}
	if err := r.disk.Mkdir(tmp); err != nil {
		return err
	}
	renamed := false
	defer func() {
		if !renamed {
			err = errors.Join(err, r.disk.RemoveAll(tmp))
		}
	}()
	m.Schema, m.Parent, m.Files = Schema, r.last, map[string]Entry{}
	for _, f := range files {
		if err := checkName(f.Name); err != nil {
			panic("rundir: " + err.Error())
		}
		if _, twice := m.Files[f.Name]; twice {
			panic("rundir: the file " + f.Name + " is given twice")
		}
		entry, err := r.write(filepath.Join(tmp, f.Name), f.Write)
		if err != nil {
			return err
		}
		if !strings.HasSuffix(f.Name, ".safetensors") {
			entry.Header = ""
		}
		m.Files[f.Name] = entry
	}
	text := m.encode()
	if _, err := r.write(filepath.Join(tmp, ManifestName), func(w io.Writer) error { _, err := w.Write(text); return err }); err != nil {
		return err
	}
	if err := r.disk.SyncDir(tmp); err != nil {
		return err
	}
	if err := r.disk.Rename(tmp, target); err != nil {
		return err
	}
	renamed = true
	if err := r.disk.SyncDir(r.path); err != nil {
		return err
	}
	r.last = name
	if err := r.point(name); err != nil {
		return err
	}
	return r.prune(name)
}

// write writes one file and returns what the manifest says of it.
func (r *Run) write(name string, fill func(io.Writer) error) (Entry, error) {
	f, err := r.disk.Create(name)
	if err != nil {
		return Entry{}, err
	}
	d := &digest{whole: sha256.New(), head: sha256.New()}
	w := bufio.NewWriterSize(io.MultiWriter(f, d), 1<<18)
	err = fill(w)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	return d.entry(), err
}

// point makes latest say name.
func (r *Run) point(name string) error {
	to := filepath.Join(r.path, "latest")
	tmp := fmt.Sprintf("%s.tmp-%d", to, os.Getpid())
	_, err := r.write(tmp, func(w io.Writer) error { _, err := io.WriteString(w, name+"\n"); return err })
	if err == nil {
		err = r.disk.Rename(tmp, to)
	}
	if err != nil {
		return errors.Join(err, r.disk.RemoveAll(tmp))
	}
	return r.disk.SyncDir(r.path)
}

// Reopen renames final, which a run goes on from, to the name of its step, so that there can be another final.
func (r *Run) Reopen(c *Checkpoint) error {
	if c.Name != "final" || filepath.Clean(c.Path) != filepath.Join(r.path, c.Name) {
		panic("rundir: only final of this run is opened again")
	}
	name := fmt.Sprintf("step_%d", c.Manifest.Step)
	if err := r.disk.Rename(c.Path, filepath.Join(r.path, name)); err != nil {
		return err
	}
	if err := r.disk.SyncDir(r.path); err != nil {
		return err
	}
	r.last, c.Name, c.Path = name, name, filepath.Join(r.path, name)
	return r.point(name)
}

// prune removes the oldest of the step_N checkpoints beyond keep. The one just saved stays.
func (r *Run) prune(saved string) error {
	if r.keep == 0 {
		return nil
	}
	names, err := r.disk.Names(r.path)
	if err != nil {
		return err
	}
	steps := slices.DeleteFunc(byStep(names), func(name string) bool { return name == saved || name == "final" })
	for _, name := range steps[:max(0, len(steps)-(r.keep-1))] {
		old := filepath.Join(r.path, name)
		gone := fmt.Sprintf("%s.tmp-%d", old, os.Getpid())
		if err := r.disk.Rename(old, gone); err != nil { // no reader meets it half removed
			return err
		}
		if err := r.disk.RemoveAll(gone); err != nil {
			return err
		}
	}
	return nil
}

var checkpointName = regexp.MustCompile(`^(step_(0|[1-9][0-9]{0,11})|final)$`)

// byStep returns the names of checkpoints among names, oldest first; final is the newest.
func byStep(names []string) []string {
	step := func(name string) int {
		if name == "final" {
			return 1 << 60
		}
		n, _ := strconv.Atoi(strings.TrimPrefix(name, "step_"))
		return n
	}
	var list []string
	for _, name := range names {
		if checkpointName.MatchString(name) {
			list = append(list, name)
		}
	}
	slices.SortFunc(list, func(a, b string) int { return step(a) - step(b) })
	return list
}

// digest computes what an [Entry] says: of the whole, and of the header of a safetensors file, which its first eight bytes
// announce.
type digest struct {
	whole, head hash.Hash
	size        int64
	first       [8]byte
}

// maxHeader is the longest header that a safetensors file may have.
const maxHeader = 100_000_000

func (d *digest) Write(p []byte) (int, error) {
	d.whole.Write(p)
	at := d.size
	d.size += int64(len(p))
	rest := p
	if at < 8 {
		n := copy(d.first[at:], rest)
		rest, at = rest[n:], at+int64(n)
	}
	if left := d.end() - at; at >= 8 && left > 0 {
		d.head.Write(rest[:min(left, int64(len(rest)))])
	}
	return len(p), nil
}

func (d *digest) end() int64 {
	return 8 + int64(min(binary.LittleEndian.Uint64(d.first[:]), maxHeader))
}

func (d *digest) entry() Entry {
	e := Entry{Size: d.size, SHA256: hex.EncodeToString(d.whole.Sum(nil))}
	if d.size >= 8 {
		e.Header = hex.EncodeToString(d.head.Sum(nil))
	}
	return e
}
