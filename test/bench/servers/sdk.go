package servers

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager/types"

	"github.com/coffer-project/coffer/test/bench/shelf"
)

// bare returns how many names the SDK alone looks for and creates in a second, from a process of its own, as the node is one.
func (y *syncing) bare(count, atOnce int) float64 {
	at := shelf.Start(y.s)
	self, err := os.Executable()
	y.s.Check(err)
	cmd := exec.Command(self, "sdk", at.URL, strconv.Itoa(count), strconv.Itoa(atOnce))
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	y.s.Check(err)
	rate, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	y.s.Check(err)
	if asked := at.Called(); asked != 2*count {
		y.s.Fatalf("the SDK made %d calls for %d names", asked, count)
	}
	return rate
}

// SDKMain is the yardstick of a first sync: it looks for as many names at the address of a shelf as it is told, as many at once, creates
// each, and prints how many that were in a second.
func SDKMain(args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("sdk takes an address and two numbers, not %q", args)
	}
	count, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	atOnce, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	client := secretsmanager.New(secretsmanager.Options{
		Region: cloudRegion, BaseEndpoint: &args[0], Retryer: aws.NopRetryer{}, Credentials: credentials.NewStaticCredentialsProvider(syncKeyID, syncKey, ""),
		HTTPClient: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: atOnce}},
	})
	failed := make(chan error, atOnce)
	var workers sync.WaitGroup
	began := time.Now()
	for first := range atOnce {
		workers.Go(func() {
			for i := first; i < count; i += atOnce {
				if err := lookAndCreate(client, fmt.Sprintf("s%d", i)); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	workers.Wait()
	took := time.Since(began)
	select {
	case err := <-failed:
		return err
	default:
	}
	fmt.Println(float64(count) / took.Seconds())
	return nil
}

func lookAndCreate(client *secretsmanager.Client, name string) error {
	ctx := context.Background()
	if _, err := client.DescribeSecret(ctx, &secretsmanager.DescribeSecretInput{SecretId: &name}); err == nil {
		return fmt.Errorf("there is a secret %s", name)
	}
	_, err := client.CreateSecret(ctx, &secretsmanager.CreateSecretInput{
		Name: &name, SecretString: aws.String(`{"username":"app-user-17","password":"correct-horse-battery-staple-0123456789"}`),
		ClientRequestToken: aws.String(rand.Text() + "00000000"), Tags: []types.Tag{{Key: aws.String("coffer:sync"), Value: aws.String(strings.Repeat("a", 65))}},
	})
	return err
}
