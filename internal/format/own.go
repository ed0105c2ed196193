package format

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// The door to the files of a folder that a program keeps for itself, a run's. The folder may come from a stranger: what lies in the place
// of its files is never followed, waited on or read without a limit. A link would have the file that it names cut short or written over.

// Own returns the path of a file of the folder dir by its name below it, with slashes, and makes the folders between. It is a *Error if
// one of them is no folder but a link, or if what lies there is no regular file or has a second name (a hard link).
func Own(dir, name string) (string, error) {
	path := dir
	parts := strings.Split(name, "/")
	for i, part := range parts {
		if !filepath.IsLocal(part) || part == "." {
			panic("format: " + name + " is no name of a file in a folder")
		}
		path = filepath.Join(path, part)
		if i == len(parts)-1 {
			break
		}
		if err := OwnDir(path); err != nil {
			return "", err
		}
	}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return path, nil
	}
	if err != nil {
		return "", err
	}
	return path, own(info, path)
}

// OwnDir makes the folder at path if it is not there. What lies there in its place, a link among them, is a *Error.
func OwnDir(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	err := os.Mkdir(path, 0o755)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(path)
	if err == nil && !info.IsDir() {
		return Malformed(path, "", "is no folder, and a link to one is refused: a run writes into its own folder only")
	}
	return err
}

func own(info fs.FileInfo, path string) error {
	if !info.Mode().IsRegular() {
		return Malformed(path, "", "is no regular file: a run writes to files of its own folder only")
	}
	if otherNames(info) {
		return Malformed(path, "", "has a second name (a hard link): a run writes to files of its own folder only; make a copy of it")
	}
	return nil
}

// OpenOwn opens a file of the folder dir to read or to write in place, with the flags of [os.OpenFile] and mode 0644 less the umask.
func OpenOwn(dir, name string, flags int) (*os.File, error) {
	path, err := Own(dir, name)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, flags&^os.O_TRUNC|ownFlags, 0o644)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat() // what was opened, whatever has taken its place since
	if err == nil {
		err = own(info, path)
	}
	if err == nil && flags&os.O_TRUNC != 0 {
		err = f.Truncate(0)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// ReadOwn returns the bytes of a file of the folder dir, at most limit.
func ReadOwn(dir, name string, limit int64) ([]byte, error) {
	f, err := OpenOwn(dir, name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return (&File{f, f.Name(), info.Size()}).ReadAll(limit)
}

// WriteOwn publishes a file of the folder dir whole or not at all, see [WriteFile].
func WriteOwn(dir, name string, write func(io.Writer) error) error {
	path, err := Own(dir, name)
	if err != nil {
		return err
	}
	return WriteFile(path, write)
}
