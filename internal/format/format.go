// Package format holds what every reader and writer of plumbline shares: element types, errors with a place, opening of
// regular files only, stored arrays that are decoded block by block, a strict JSON scanner, and atomic writes.
//
// The readers themselves live in the folders below, one per format. Their contract: an error and never a panic on any
// input; nothing is allocated before the size a file declares has been checked against the size it has; accepted means
// that every declared byte lies inside the file.
package format

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Error says that the content of a file was refused: it is malformed, hostile or of a kind that is never loaded.
// Everything else that can go wrong with a file (missing, unreadable, I/O) stays the error of package os.
type Error struct {
	File  string // path, with ":member" where the file is a container
	Where string // byte offset or key, "" for the file as a whole
	Msg   string // what was found and what was expected
}

func (e *Error) Error() string {
	if e.Where == "" {
		return e.File + ": " + e.Msg
	}
	return e.File + ": " + e.Where + ": " + e.Msg
}

// Malformed returns an *Error about the place where in file.
func Malformed(file, where, msg string, args ...any) error {
	return &Error{File: file, Where: where, Msg: fmt.Sprintf(msg, args...)}
}

// IsMalformed reports whether err says that content was refused, as opposed to a file that could not be read.
func IsMalformed(err error) bool {
	var e *Error
	return errors.As(err, &e)
}

// Unread adds the name of the file to an error of reading it. Refusals already have it.
func Unread(name string, err error) error {
	if IsMalformed(err) {
		return err
	}
	return fmt.Errorf("%s: %w", name, err)
}

// Offset formats a byte offset as the Where of an Error.
func Offset(n int64) string { return fmt.Sprintf("byte %d", n) }

// File is an open regular file whose size was read from the open descriptor.
type File struct {
	*os.File
	Path string // as the user wrote it
	Size int64
}

// Open opens the regular file at path for reading. A directory, FIFO, socket or device is refused with an *Error and
// never waited on: the file is looked at before and after it is opened, and opened without blocking.
func Open(path string) (*File, error) {
	return open(path, os.Stat, func(p string) (*os.File, error) { return os.OpenFile(p, openFlags, 0) }, path)
}

// OpenAs opens the regular file at path and returns what parse makes of it, which closes the file. If parse fails the file is closed here.
func OpenAs[T any](path string, parse func(*File) (T, error)) (T, error) {
	f, err := Open(path)
	if err != nil {
		return *new(T), err
	}
	v, err := parse(f)
	if err != nil {
		f.Close()
		return *new(T), err
	}
	return v, nil
}

// OpenIn opens the regular file name inside root. A name or symbolic link that leaves root fails in the path walk of
// package os; shown is the path for messages.
func OpenIn(root *os.Root, name, shown string) (*File, error) {
	return open(name, root.Stat, func(p string) (*os.File, error) { return root.OpenFile(p, openFlags, 0) }, shown)
}

func open(path string, stat func(string) (fs.FileInfo, error), openFile func(string) (*os.File, error), shown string) (*File, error) {
	info, err := stat(path)
	if err != nil {
		return nil, err
	}
	if err := regular(info, shown); err != nil {
		return nil, err
	}
	f, err := openFile(path)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil {
		err = regular(info, shown)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &File{File: f, Path: shown, Size: info.Size()}, nil
}

func regular(info fs.FileInfo, path string) error {
	switch m := info.Mode(); {
	case m.IsRegular():
		return nil
	case m.IsDir():
		return Malformed(path, "", "is a directory, want a regular file")
	case m&fs.ModeNamedPipe != 0:
		return Malformed(path, "", "is a FIFO, want a regular file")
	case m&fs.ModeSocket != 0:
		return Malformed(path, "", "is a socket, want a regular file")
	default:
		return Malformed(path, "", "is a device or another special file, want a regular file")
	}
}
