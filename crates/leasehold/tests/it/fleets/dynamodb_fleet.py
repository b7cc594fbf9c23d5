"""The rules of the lock clients for Java and Go on DynamoDB, as their documents tell them: python dynamodb_fleet.py PORT DIALECT NAME LEASE_MS.

Written from the rules alone, with none of their code and none of ours. Each line on stdin is a command, answered by one line of JSON: see script.rs.
"""

import base64
import http.client
import json
import sys
import threading
import time
import uuid

TABLE = "locks"
POLL = 0.03


class Refused(Exception):
    pass


class Client:
    def __init__(self, port, dialect, name, lease_ms):
        self.port, self.dialect, self.name, self.lease = port, dialect, name, lease_ms
        self.owner = "fleet-" + str(uuid.uuid4())
        self.version = None
        self.local = threading.local()
        self.mutex = threading.Lock()
        threading.Thread(target=self.heartbeats, daemon=True).start()

    def call(self, action, **body):
        if not hasattr(self.local, "connection"):
            self.local.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        headers = {
            "content-type": "application/x-amz-json-1.0",
            "x-amz-target": "DynamoDB_20120810." + action,
            "x-amz-date": "20260101T000000Z",
            "authorization": "AWS4-HMAC-SHA256 Credential=AKIATEST/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0",
        }
        body["TableName"] = TABLE
        try:
            self.local.connection.request("POST", "/", json.dumps(body), headers)
            answer = self.local.connection.getresponse()
            said = json.loads(answer.read())
        except (http.client.HTTPException, OSError):
            del self.local.connection
            raise
        if answer.status != 200:
            if "ConditionalCheckFailed" in said.get("__type", ""):
                raise Refused()
            raise RuntimeError(said)
        return said

    def duration(self):
        return str(self.lease) if self.dialect == "java" else "%gs" % (self.lease / 1000)

    def milliseconds(self, text):
        if self.dialect == "java":
            return int(text)
        if text.endswith("ms"):
            return float(text[:-2])
        return float(text[:-1]) * 1000

    def put(self, condition, values):
        version = str(uuid.uuid4())
        item = {
            "key": {"S": self.name},
            "ownerName": {"S": self.owner},
            "leaseDuration": {"S": self.duration()},
            "recordVersionNumber": {"S": version},
            "data": {"B": base64.b64encode(b"theirs").decode()},
        }
        names = {"#k": "key"}
        if "#v" in condition:
            names["#v"] = "recordVersionNumber"
        if "#r" in condition:
            names["#r"] = "isReleased"
        request = dict(Item=item, ConditionExpression=condition, ExpressionAttributeNames=names)
        if values:
            request["ExpressionAttributeValues"] = values
        with self.mutex:
            self.call("PutItem", **request)
            self.version = version

    def acquire(self, blocking):
        seen, since = None, None
        while True:
            row = self.call("GetItem", Key={"key": {"S": self.name}}, ConsistentRead=True).get("Item")
            now = time.monotonic()
            try:
                if row is None:
                    self.put("attribute_not_exists(#k)", None)
                    return True
                if "isReleased" in row:
                    self.put("attribute_exists(#k) AND #r = :r", {":r": {"S": "1"}})
                    return True
                version = row["recordVersionNumber"]["S"]
                if version != seen:
                    seen, since = version, now
                elif (now - since) * 1000 > self.milliseconds(row["leaseDuration"]["S"]):
                    self.put("attribute_exists(#k) AND #v = :v", {":v": {"S": seen}})
                    return True
            except Refused:
                pass
            if not blocking:
                return False
            time.sleep(POLL)

    MINE = dict(
        ConditionExpression="attribute_exists(#k) AND #v = :v AND #o = :o",
        ExpressionAttributeNames={"#k": "key", "#v": "recordVersionNumber", "#o": "ownerName"},
    )

    def mine(self):
        return {":v": {"S": self.version}, ":o": {"S": self.owner}}

    def heartbeats(self):
        while True:
            time.sleep(self.lease / 4000)
            with self.mutex:
                if self.version is None:
                    continue
                version = str(uuid.uuid4())
                try:
                    self.call(
                        "UpdateItem",
                        Key={"key": {"S": self.name}},
                        UpdateExpression="SET #v = :n, #l = :l",
                        ConditionExpression=self.MINE["ConditionExpression"],
                        ExpressionAttributeNames={**self.MINE["ExpressionAttributeNames"], "#l": "leaseDuration"},
                        ExpressionAttributeValues={**self.mine(), ":n": {"S": version}, ":l": {"S": self.duration()}},
                    )
                    self.version = version
                except Refused:
                    self.version = None

    def release(self, keep):
        with self.mutex:
            if self.version is None:
                return False
            mine, self.version = self.mine(), None
            try:
                if keep:
                    self.call(
                        "UpdateItem",
                        Key={"key": {"S": self.name}},
                        UpdateExpression="SET #r = :r",
                        ConditionExpression=self.MINE["ConditionExpression"],
                        ExpressionAttributeNames={**self.MINE["ExpressionAttributeNames"], "#r": "isReleased"},
                        ExpressionAttributeValues={**mine, ":r": {"S": "1"}},
                    )
                else:
                    self.call("DeleteItem", Key={"key": {"S": self.name}}, ExpressionAttributeValues=mine, **self.MINE)
                return True
            except Refused:
                return False


def main():
    port, dialect, name, lease = sys.argv[1:]
    client = Client(int(port), dialect, name, int(lease))
    for line in sys.stdin:
        command, *arguments = line.split()
        done = True
        if command == "try":
            done = client.acquire(False)
        elif command == "wait":
            done = client.acquire(True)
        elif command == "release":
            done = client.release(keep=False)
        elif command == "keep":
            done = client.release(keep=True)
        elif command == "contend":
            rounds, letter, path = arguments
            for nth in range(int(rounds)):
                client.acquire(True)
                with open(path) as file:
                    seen = file.read()
                time.sleep(0.002)
                with open(path, "w") as file:
                    file.write(seen + letter)
                client.release(keep=nth % 2 == 0)
                time.sleep(0.005)
        print(json.dumps({"done": done}), flush=True)


main()
