package format

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
)

// Digest returns the sha256 of what r holds, in hexadecimal, or the error of reading it, which is that of ctx where it ends before.
func Digest(ctx context.Context, r io.Reader) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, untilDone{ctx, r}); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// untilDone reads until its context ends.
type untilDone struct {
	ctx context.Context
	r   io.Reader
}

func (u untilDone) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(p)
}
