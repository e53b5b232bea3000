"use strict";
// What people do with a bucket by the AWS SDK for JavaScript. Ends with 0 if the SDK saw what it has to see; what is stored then is
// for the caller to look at.
//
//     NODE_PATH=FOLDER/node_modules node client.js '{"endpoint": ..., "bucket": ..., "names": [...], "large": PATH, "part": BYTES}'
//
// Keys come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), the server's certificate too (NODE_EXTRA_CA_CERTS).

const assert = require("node:assert/strict");
const fs = require("node:fs");
const { Readable } = require("node:stream");
const s3 = require("@aws-sdk/client-s3");
const { Upload } = require("@aws-sdk/lib-storage");
const { getSignedUrl } = require("@aws-sdk/s3-request-presigner");

const { endpoint, bucket, names, large: largePath, part: partLenBytes } = JSON.parse(process.argv[2]);
const large = fs.readFileSync(largePath);
const small = Buffer.from("by JavaScript");

function client(more) {
  return new s3.S3Client({ endpoint, region: "us-east-1", forcePathStyle: true, maxAttempts: 1, ...more });
}

const plain = client({});
const send = (Command, Key, more) => plain.send(new Command({ Bucket: bucket, Key, ...more }));

async function bytes(Key, more) {
  const got = await send(s3.GetObjectCommand, Key, more);
  return Buffer.from(await got.Body.transformToByteArray());
}

// The status with which a request is refused; undefined, if it is not.
async function refused(request) {
  try {
    await request;
    return undefined;
  } catch (error) {
    if (error.$metadata === undefined) {
      throw error;
    }
    return error.$metadata.httpStatusCode;
  }
}

function* pieces(data) {
  for (let at = 0; at < data.length; at += 50_000) {
    yield data.subarray(at, at + 50_000);
  }
}

// Bytes whose number the SDK cannot see.
function stream(data) {
  return Readable.from(pieces(data), { objectMode: false });
}

async function puts() {
  await send(s3.PutObjectCommand, "js/small", { Body: small });
  await send(s3.PutObjectCommand, "js/file", { Body: fs.createReadStream(largePath) });
  await send(s3.PutObjectCommand, "js/told", { Body: stream(large), ContentLength: large.length });
  await send(s3.PutObjectCommand, "js/packed", { Body: stream(small), ContentLength: small.length, ContentEncoding: "gzip" });
  for (const ChecksumAlgorithm of ["CRC32", "CRC32C", "SHA1", "SHA256"]) {
    await send(s3.PutObjectCommand, `js/${ChecksumAlgorithm}`, { Body: fs.createReadStream(largePath), ChecksumAlgorithm });
  }
  const streamed = { Bucket: bucket, Key: "js/stream", Body: stream(large) };
  await new Upload({ client: plain, params: streamed, partSize: partLenBytes, queueSize: 2 }).done();
  const composite = { ...streamed, Key: "js/parts", Body: large, ChecksumAlgorithm: "SHA256" };
  await new Upload({ client: plain, params: composite, partSize: partLenBytes, queueSize: 2 }).done();
}

async function reads() {
  assert.deepEqual(await bytes("js/small"), small);
  for (const key of ["js/file", "js/told", "js/stream", "js/parts"]) {
    assert.ok(large.equals(await bytes(key)), key);
  }
  assert.ok(large.subarray(1000, 3000).equals(await bytes("js/file", { Range: "bytes=1000-2999" })));
  const head = await send(s3.HeadObjectCommand, "js/file", { ChecksumMode: "ENABLED" });
  assert.equal(head.ContentLength, large.length);
  assert.equal(head.ContentEncoding, undefined);
  assert.notEqual(head.ChecksumCRC32, undefined);
}

async function conditions() {
  const { ETag } = await send(s3.HeadObjectCommand, "js/small");
  assert.equal(await refused(send(s3.PutObjectCommand, "js/small", { Body: "other", IfNoneMatch: "*" })), 412);
  assert.equal(await refused(send(s3.GetObjectCommand, "js/small", { IfNoneMatch: ETag })), 304);
  assert.equal(await refused(send(s3.GetObjectCommand, "js/small", { IfMatch: '"0123"' })), 412);
  assert.deepEqual(await bytes("js/small", { IfMatch: ETag }), small);
}

async function copies() {
  await send(s3.CopyObjectCommand, "js/copy", { CopySource: `${bucket}/js/packed` });
  const taken = { CopySource: `${bucket}/js/small`, CopySourceIfMatch: '"0123"' };
  assert.equal(await refused(send(s3.CopyObjectCommand, "js/no-copy", taken)), 412);
}

async function tags() {
  await send(s3.PutObjectCommand, "js/tagged", { Body: small, Tagging: "first=1" });
  const TagSet = [{ Key: "ü b", Value: "2" }];
  await send(s3.PutObjectTaggingCommand, "js/tagged", { Tagging: { TagSet } });
  assert.deepEqual((await send(s3.GetObjectTaggingCommand, "js/tagged")).TagSet, TagSet);
}

async function lists() {
  const wanted = names.map((name) => `js/names/${name}`);
  for (const key of wanted) {
    await send(s3.PutObjectCommand, key, { Body: key });
  }
  const listed = [];
  for await (const page of s3.paginateListObjectsV2({ client: plain, pageSize: 4 }, { Bucket: bucket, Prefix: "js/names/" })) {
    listed.push(...(page.Contents ?? []).map((entry) => entry.Key));
  }
  assert.deepEqual(listed.sort(), wanted.slice().sort());
  for (const key of wanted) {
    assert.equal((await bytes(key)).toString(), key);
  }
  const done = await plain.send(new s3.DeleteObjectsCommand({ Bucket: bucket, Delete: { Objects: wanted.map((Key) => ({ Key })) } }));
  assert.deepEqual(done.Errors ?? [], []);
  assert.equal(done.Deleted.length, wanted.length);
  const left = await plain.send(new s3.ListObjectsV2Command({ Bucket: bucket, Prefix: "js/names/" }));
  assert.equal(left.KeyCount, 0);
}

async function presigned() {
  // Otherwise the SDK signs the checksum of the bytes that it has: of none.
  const signs = client({ requestChecksumCalculation: "WHEN_REQUIRED" });
  const place = { Bucket: bucket, Key: "js/signed a+b" };
  const put = await fetch(await getSignedUrl(signs, new s3.PutObjectCommand(place), { expiresIn: 60 }), { method: "PUT", body: small });
  assert.equal(put.status, 200, await put.text());
  const got = await fetch(await getSignedUrl(signs, new s3.GetObjectCommand(place), { expiresIn: 60 }));
  assert.deepEqual(Buffer.from(await got.arrayBuffer()), small);
  assert.equal(got.headers.get("content-encoding"), null);
}

async function main() {
  for (const step of [puts, reads, conditions, copies, tags, lists, presigned]) {
    await step();
    console.log(step.name);
  }
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
