package rundir

import (
	"io"
	"os"
	"plumbline/internal/format"
)

// Disk is what saving does to a file system. The tests put one in place of [OS] that fails, stops or forgets.
type Disk interface {
	Mkdir(name string) error             // mode 0755 less the umask; an error if it is there
	Create(name string) (Writer, error)  // mode 0644 less the umask; an error if it is there
	Rename(from, to string) error        // replaces a file, never a directory that holds something
	SyncDir(name string) error           // what was created, renamed and removed in it is there after a power failure
	RemoveAll(name string) error         // no error if it is not there
	Names(name string) ([]string, error) // of the entries of a directory, in increasing order
	Exists(name string) (bool, error)    // of any kind; a link is not followed
}

// Writer is a file that is being written.
type Writer interface {
	io.Writer
	Sync() error // what was written is there after a power failure
	Close() error
}

// OS is the file system of the machine.
type OS struct{}

func (OS) Mkdir(name string) error { return os.Mkdir(name, 0o755) }

func (OS) Create(name string) (Writer, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err // a nil *os.File would not be a nil Writer
	}
	return f, nil
}

func (OS) Rename(from, to string) error { return os.Rename(from, to) }

func (OS) SyncDir(name string) error { return format.SyncDir(name) }

func (OS) RemoveAll(name string) error { return os.RemoveAll(name) }

func (OS) Names(name string) ([]string, error) {
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

func (OS) Exists(name string) (bool, error) {
	_, err := os.Lstat(name)
	if os.IsNotExist(err) {
		return false, nil
	}
	return err == nil, err
}
