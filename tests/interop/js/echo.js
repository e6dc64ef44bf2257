// MQTT.js subscribes to a topic, publishes at each QoS, and prints what it gets: node echo.js URL VERSION CA TOPIC
const fs = require('fs')
const mqtt = require('mqtt')

const [url, version, ca, topic] = process.argv.slice(2)
const options = { protocolVersion: Number(version), ca: fs.readFileSync(ca), reconnectPeriod: 0 }
const client = url.startsWith('unix://')
  ? mqtt.connect({ ...options, protocol: 'mqtt+unix', path: url.slice('unix://'.length) })
  : mqtt.connect(url, options)

let seen = 0
client.on('error', (error) => { console.error(error); process.exit(1) })
client.on('message', (found, payload, packet) => {
  console.log(`${found} ${payload} ${packet.qos}`)
  if (++seen === 3) client.end()
})
client.on('connect', async () => {
  await client.subscribeAsync(topic, { qos: 2 })
  for (const qos of [0, 1, 2]) await client.publishAsync(topic, `${qos}`, { qos })
})
