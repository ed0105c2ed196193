package format

import "io"

// Section reads the bytes of R from Off up to End, which lies inside the file as it was when it was opened. A failure is
// kept in Err, so that behind a decompressor it stays distinct from content that does not decompress.
type Section struct {
	R        io.ReaderAt
	Off, End int64
	Err      error
}

// Read implements io.Reader. A file that was cut after it was opened gives io.ErrUnexpectedEOF.
func (s *Section) Read(p []byte) (int, error) {
	if s.Off >= s.End {
		return 0, io.EOF
	}
	n, err := s.R.ReadAt(p[:min(int64(len(p)), s.End-s.Off)], s.Off)
	s.Off += int64(n)
	if n > 0 || err == nil {
		return n, nil
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	s.Err = err
	return 0, err
}
