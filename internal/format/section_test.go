package format

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

type brokenDisk struct{ err error }

func (b brokenDisk) ReadAt([]byte, int64) (int, error) { return 0, b.err }

func TestSection(t *testing.T) {
	data := []byte("0123456789")
	s := &Section{R: bytes.NewReader(data), Off: 2, End: 5}
	got, err := io.ReadAll(s)
	require.NoError(t, err)
	require.Equal(t, "234", string(got))
	require.NoError(t, s.Err)

	s = &Section{R: bytes.NewReader(data), Off: 8, End: 12} // the file was cut to 10 bytes
	_, err = io.ReadAll(s)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.ErrorIs(t, s.Err, io.ErrUnexpectedEOF)

	disk := errors.New("disk")
	s = &Section{R: brokenDisk{disk}, End: 1}
	_, err = s.Read(make([]byte, 1))
	require.ErrorIs(t, err, disk)
	require.ErrorIs(t, s.Err, disk)

	_, err = (&Section{R: bytes.NewReader(data), Off: 5, End: 3}).Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}
