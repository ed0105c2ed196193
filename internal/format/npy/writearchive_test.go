package npy

import (
	"archive/zip"
	"fmt"
	"io"
	"time"

	"plumbline/internal/format"
	dir "plumbline/internal/format/zip"
)

// Member is an array to be written into an archive.
type Member struct {
	Name  string // without ".npy"
	DType format.DType
	Shape []int
	Data  []float64 // in C order, of a type that Write serves
	Raw   []byte    // in place of Data: little-endian elements in C order
}

// epoch is the time given to members, as NumPy does, so that equal arrays give equal files. It is the first that zip
// can express.
var epoch = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)

// WriteArchive writes members, in their order, as an .npz file without compression. A name that a reader would refuse
// gives an error. It panics as Write and WriteRaw do.
func WriteArchive(w io.Writer, members []Member) error {
	if len(members) > maxEntries {
		return fmt.Errorf("%d members, at most %d fit an archive", len(members), maxEntries)
	}
	z := zip.NewWriter(w)
	names := map[string]bool{}
	for _, m := range members {
		name, err := memberName(m.Name + ".npy")
		if err == nil {
			err = dir.CheckName(name)
		}
		if err != nil {
			return fmt.Errorf("member %q: %w", m.Name, err)
		}
		if names[m.Name] {
			return fmt.Errorf("member %q is there twice", m.Name)
		}
		names[m.Name] = true
		f, err := z.CreateHeader(&zip.FileHeader{Name: m.Name + ".npy", Method: zip.Store, Modified: epoch})
		if err != nil {
			return err
		}
		if m.Raw != nil {
			err = WriteRaw(f, m.DType, m.Shape, m.Raw)
		} else {
			err = Write(f, m.DType, m.Shape, m.Data)
		}
		if err != nil {
			return err
		}
	}
	return z.Close()
}

// WriteArchiveFile is WriteArchive into the file at path, which is published whole or not at all (format.WriteFile).
func WriteArchiveFile(path string, members []Member) error {
	return format.WriteFile(path, func(w io.Writer) error { return WriteArchive(w, members) })
}

// WriteRaw writes data, little-endian elements of any type in C order, as a .npy file. It panics as Write does.
func WriteRaw(w io.Writer, d format.DType, shape []int, data []byte) error {
	if _, n, _ := format.CheckedSize(shape, d.Size()); n != int64(len(data)) {
		panic(fmt.Sprintf("npy: WriteRaw: %d bytes for %s of shape %v", len(data), d, shape))
	}
	if _, err := w.Write(Header(d, shape)); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}
