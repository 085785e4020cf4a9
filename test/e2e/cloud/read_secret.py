"""Reads a secret as an application does, with boto3: read_secret.py URL NAME [LABEL]. Prints the text, or why there is none."""

import json
import sys

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

url, name, *label = sys.argv[1:]
client = boto3.client("secretsmanager", endpoint_url=url, config=Config(retries={"total_max_attempts": 1}))
try:
    answer = client.get_secret_value(SecretId=name, **({"VersionStage": label[0]} if label else {}))
    print(json.dumps({"text": answer["SecretString"]}))
except ClientError as error:
    print(json.dumps({"rejected": error.response["Error"]["Code"]}))
