package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"plumbline/internal/format"
)

// maxBlob bounds a blob.
const maxBlob = 8 << 30

// maxRollout bounds the blob of a rollout, which a worker sends.
const maxRollout = 256 << 20

var blobName = regexp.MustCompile(`^[0-9a-f]{64}$`)

// blobs are kept by the sha256 of their bytes. get returns an error for bytes that have another.
type blobs interface {
	put(ctx context.Context, data []byte) (name string, err error)
	get(ctx context.Context, name string) ([]byte, error)
}

// folder is blobs in a folder, which workers may share.
type folder string

func (f folder) put(_ context.Context, data []byte) (string, error) {
	name := hash(data)
	if old, err := f.get(context.Background(), name); err == nil && bytes.Equal(old, data) {
		return name, nil
	}
	if err := format.OwnDir(string(f)); err != nil {
		return "", err
	}
	return name, format.WriteOwn(string(f), name, func(w io.Writer) error { _, err := w.Write(data); return err })
}

// raw returns what lies under a name, whatever its hash is.
func (f folder) raw(name string) ([]byte, error) {
	if !blobName.MatchString(name) {
		return nil, fmt.Errorf("%.80q is no name of a blob", name)
	}
	return format.ReadOwn(string(f), name, maxBlob)
}

func (f folder) get(_ context.Context, name string) ([]byte, error) {
	data, err := f.raw(name)
	if err == nil && hash(data) != name {
		err = format.Malformed(string(f)+"/"+name, "", "is corrupted: its sha256 is another one")
	}
	return data, err
}

// remove removes a blob if it is there. A name that is none, as a stranger's folder may have it, names no file.
func (f folder) remove(name string) error {
	if !blobName.MatchString(name) {
		return nil
	}
	if err := os.Remove(filepath.Join(string(f), name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// remoteBlobs are those of a coordinator over HTTP.
type remoteBlobs struct {
	url, token string
	client     *http.Client
}

func (r *remoteBlobs) do(ctx context.Context, method, name string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(r.url, "/")+"/"+name, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+r.token)
	res, err := r.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	var data []byte
	if n := res.ContentLength; n >= 0 && n <= maxBlob {
		data = make([]byte, n)
		_, err = io.ReadFull(res.Body, data)
	} else {
		data, err = io.ReadAll(io.LimitReader(res.Body, maxBlob))
	}
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %.200s", method, name, res.Status, data)
	}
	return data, err
}

func (r *remoteBlobs) put(ctx context.Context, data []byte) (string, error) {
	name := hash(data)
	_, err := r.do(ctx, http.MethodPut, name, data)
	return name, err
}

func (r *remoteBlobs) get(ctx context.Context, name string) ([]byte, error) {
	data, err := r.do(ctx, http.MethodGet, name, nil)
	if err == nil && hash(data) != name {
		err = fmt.Errorf("blob %s came corrupted: its sha256 is another one", name)
	}
	return data, err
}

// serve hands out blobs, and takes rollouts, over HTTP. What goes out is hashed by who gets it, and not again for each worker here.
func serve(listen string, t *tls.Config, token string, b folder) (url string, stop func() error, err error) {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return "", nil, err
	}
	scheme := "http"
	var one sync.Mutex // two workers may send the same blob
	if t != nil {
		l, scheme = tls.NewListener(l, t), "https"
	}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/")
		if r.Header.Get("Authorization") != "Bearer "+token {
			http.Error(w, "no token of this run", http.StatusUnauthorized)
			return
		}
		switch r.Method {
		case http.MethodGet:
			data, err := b.raw(name)
			if err != nil {
				http.Error(w, err.Error(), http.StatusNotFound)
				return
			}
			w.Header().Set("Content-Length", strconv.Itoa(len(data)))
			w.Write(data)
		case http.MethodPut:
			data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRollout))
			if err == nil && hash(data) != name {
				err = errors.New("the sha256 of what came is not the name")
			}
			if err == nil {
				one.Lock()
				_, err = b.put(r.Context(), data)
				one.Unlock()
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
			}
		default:
			http.Error(w, "GET or PUT", http.StatusMethodNotAllowed)
		}
	})}
	go s.Serve(l)
	return scheme + "://" + l.Addr().String(), s.Close, nil
}

func openBlobs(at, token string, s Security) (blobs, error) {
	if !strings.HasPrefix(at, "http://") && !strings.HasPrefix(at, "https://") {
		return folder(at), nil
	}
	if err := s.allows(at); err != nil {
		return nil, err
	}
	t, err := s.client()
	return &remoteBlobs{at, token, &http.Client{Transport: &http.Transport{TLSClientConfig: t, DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext, ResponseHeaderTimeout: 2 * time.Minute}}}, err
}
