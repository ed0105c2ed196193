package train

import (
	"errors"
	"strings"

	"plumbline/internal/config"
)

// NoCluster is the value of cluster where one process draws all samples.
const NoCluster = "off"

// clusterKey adds the key that says who draws the samples. It has no effect on them.
func clusterKey(s *config.Settings, where *string) {
	*where = NoCluster
	s.Checked("cluster", where, func(text string) error {
		if text == NoCluster || text == "embedded" || strings.HasPrefix(text, "nats://") || strings.HasPrefix(text, "tls://") {
			return nil
		}
		return errors.New("want off, embedded, nats://HOST:PORT or tls://HOST:PORT")
	}, "who draws the samples: off, this process; embedded, workers (train worker) over a queue in this process; or the URL of a NATS cluster")
}
