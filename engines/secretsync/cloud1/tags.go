package cloud1

import (
	"fmt"
	"maps"
	"strings"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Tags returns all tags that an item is to have.
func Tags(it destination.Item) map[string]string {
	tags := maps.Clone(it.Tags)
	if tags == nil {
		tags = map[string]string{}
	}
	if it.OwnerTag != "" {
		tags[OwnerTag] = it.OwnerTag
	}
	return tags
}

// CheckTags returns an error if there are too many tags.
func CheckTags(n int) error {
	if n <= MaxTags {
		return nil
	}
	return Client(destination.Quota, fmt.Sprintf("AWS takes at most %d tags of one name, this one would have %d: take some away", MaxTags, n))
}

// TagChanges returns what has to be set and taken away of the tags that there are.
func TagChanges(it destination.Item, are map[string]string) (set map[string]string, unset []string, err error) {
	left, set := maps.Clone(are), map[string]string{}
	wanted := Tags(it)
	for _, key := range it.OldTags {
		_, is := are[key]
		if _, stays := wanted[key]; is && !stays {
			unset = append(unset, key)
			delete(left, key)
		}
	}
	for key, value := range wanted {
		if is, ok := are[key]; !ok || is != value {
			set[key] = value
		}
		left[key] = value
	}
	return set, unset, CheckTags(len(left))
}

// KeyName is what identifies a key in its account and region, of its ARN, its id or its alias.
func KeyName(key string) string {
	if strings.HasPrefix(key, "arn:") {
		if _, own, ok := strings.Cut(key, ":alias/"); ok {
			return "alias/" + own
		}
		if _, id, ok := strings.Cut(key, ":key/"); ok {
			return id
		}
	}
	return key
}
